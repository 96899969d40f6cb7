"""The norms of norm.py as torch operators, over rows, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoding._C import training
from decoding.nn.operators import new_numbers, operator, sum_dtype


@operator("decoding::norm", results=1)
def norm_rows(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool
) -> tuple[Tensor, Tensor]:
    """x: [..., cols]; the others: [cols].

    Returns the norm, [..., cols], and for the gradient, in the type of sums, the rows' means, which
    an RMS norm is without, and then the factors of the norm, [rows or 2 rows].
    """
    y, stats = torch.empty_like(x), stats_of(x, rms)
    training.norm(x, y, stats, weight, bias, None, None, None, eps, rms)
    return y, stats


@norm_rows.register_fake
def _(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), stats_of(x, rms)


@operator("decoding::add_norm", results=2)
def add_norm_rows(
    x: Tensor,
    residual: Tensor | None,
    input_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of dropout(x + input_bias) + residual, of which something is there. x: [..., cols],
    cast to the residual's type; input_bias: [cols]; seed: int64 [1]. Returns the sum after the
    norm, else as norm_rows."""
    wide = as_residual(x, residual)
    total = torch.empty_like(x) if wide is x else wide
    y, stats = torch.empty_like(wide), stats_of(wide, rms)
    how = (eps, rms, dropout, seed)
    training.norm(wide, y, stats, weight, bias, residual, input_bias, total, *how)
    return y, total, stats


@add_norm_rows.register_fake
def _(
    x: Tensor,
    residual: Tensor | None,
    input_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    x = as_residual(x, residual)
    return torch.empty_like(x), torch.empty_like(x), stats_of(x, rms)


def as_residual(x: Tensor, residual: Tensor | None) -> Tensor:
    """x in the residual's type."""
    return x if residual is None or residual.dtype == x.dtype else x.to(residual.dtype)


def stats_of(x: Tensor, rms: bool) -> Tensor:
    """Memory for what is kept of the rows."""
    return new_numbers(x, (1 if rms else 2) * x.shape[:-1].numel(), sum_dtype(x))


@operator("decoding::norm_gradient")
def norm_gradient(
    total: Tensor,
    dy: Tensor,
    dtotal: Tensor | None,
    weight: Tensor | None,
    stats: Tensor,
    dtype: torch.dtype,
    wanted: Sequence[bool],
    dropout: float,
    seed: Tensor | None,
) -> list[Tensor]:
    """Of the input, [..., cols] as the sum `total` that was normed; and of those that are wanted of
    weight, bias and input_bias, [cols] of `dtype`, and of the residual, which has the input's where
    nothing is dropped. dtotal: the gradient of the sum itself."""
    found = gradients_of(total, dtype, wanted)
    rest = iter(found[1:])
    dgamma, dbeta, dbias, dresidual = (next(rest) if needed else None for needed in wanted)
    gradients = (dgamma, dbeta, dbias, dtotal, dresidual)
    training.norm_backward(total, dy, found[0], stats, weight, *gradients, dropout, seed)
    return found


@norm_gradient.register_fake
def _(
    total: Tensor,
    dy: Tensor,
    dtotal: Tensor | None,
    weight: Tensor | None,
    stats: Tensor,
    dtype: torch.dtype,
    wanted: Sequence[bool],
    *_: Any,
) -> list[Tensor]:
    return gradients_of(total, dtype, wanted)


def gradients_of(total: Tensor, dtype: torch.dtype, wanted: Sequence[bool]) -> list[Tensor]:
    """Memory for the results of norm_gradient."""
    found, cols = [torch.empty_like(total)], total.shape[-1]
    *weights, residual = wanted
    for needed in weights:
        if needed:
            found.append(new_numbers(total, cols, dtype))
    if residual:
        found.append(torch.empty_like(total))
    return found


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *_ = inputs
    ctx.dtype = dtype_of(weight, bias, like=x)
    ctx.save_for_backward(x, weight, output[1])


def keep_of_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, input_bias, weight, bias, _, _, ctx.dropout, seed = inputs
    _, total, stats = output
    ctx.dtype, ctx.input_dtype = dtype_of(weight, bias, input_bias, like=total), x.dtype
    ctx.save_for_backward(total, weight, stats, seed)
    ctx.set_materialize_grads(False)


def dtype_of(*weights: Tensor | None, like: Tensor) -> torch.dtype:
    """That of weights and of their gradients."""
    return next((weight.dtype for weight in weights if weight is not None), like.dtype)


def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, stats = ctx.saved_tensors
    _, wants_weight, wants_bias, *_ = ctx.needs_input_grad
    wanted = [wants_weight, wants_bias, False, False]
    found = norm_gradient(x, dy.contiguous(), None, weight, stats, ctx.dtype, wanted, 0.0, None)
    dweight, dbias = found[1] if wants_weight else None, found[-1] if wants_bias else None
    return found[0], dweight, dbias, None, None


def backward_of_sum(
    ctx: Any, dy: Tensor | None, dtotal: Tensor | None, *_: Tensor
) -> tuple[Tensor | None, ...]:
    total, weight, stats, seed = ctx.saved_tensors
    _, wants_residual, wants_input_bias, wants_weight, wants_bias, *_ = ctx.needs_input_grad
    wanted = [wants_weight, wants_bias, wants_input_bias, wants_residual and ctx.dropout > 0]
    dy = torch.zeros_like(total) if dy is None else dy.contiguous()
    dtotal = None if dtotal is None else dtotal.contiguous()
    how = (ctx.dtype, wanted, ctx.dropout, seed)
    dx, *found = norm_gradient(total, dy, dtotal, weight, stats, *how)
    rest = iter(found)
    dweight, dbias, dinput_bias, dresidual = (next(rest) if needed else None for needed in wanted)
    if wants_residual and dresidual is None:
        dresidual = dx
    dx = dx if dx.dtype == ctx.input_dtype else dx.to(ctx.input_dtype)
    return dx, dresidual, dinput_bias, dweight, dbias, None, None, None, None


norm_rows.register_autograd(backward, setup_context=keep)
add_norm_rows.register_autograd(backward_of_sum, setup_context=keep_of_sum)
