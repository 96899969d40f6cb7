"""Layer norm and RMS norm, fused with the bias and residual that a Transformer adds before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoding._C import training
from decoding.nn.operators import new_numbers, operator, sum_dtype, weights_beside

Shape = Sequence[int]


def layer_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    input_bias: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.layer_norm of input + input_bias.

    weight, bias, input_bias: [normalized_shape]; beside half precision they may be float32. The
    result has the input's type, under autocast too (where torch makes it float32 on a GPU); sums
    are float32, or float64 for float64. Raises ValueError for shapes that do not fit.
    """
    y, _ = norm(input, None, input_bias, normalized_shape, weight, bias, eps, rms=False)
    return y


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    input_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The layer norm of input + input_bias + residual, and that sum, which the next block adds to.

    residual: of the input's shape; of another type, both take the wider one. Else as `layer_norm`.
    """
    return norm(input, residual, input_bias, normalized_shape, weight, bias, eps, rms=False)


def rms_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    input_bias: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.rms_norm of input + input_bias; the rest as for `layer_norm`.

    eps None: the rounding step of the type that sums have.
    """
    y, _ = norm(input, None, input_bias, normalized_shape, weight, None, eps, rms=True)
    return y


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    input_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The RMS norm of input + input_bias + residual, and that sum; see `add_layer_norm`."""
    return norm(input, residual, input_bias, normalized_shape, weight, None, eps, rms=True)


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm. With a residual it returns a pair, as functional.add_layer_norm."""

    def forward(
        self, input: Tensor, residual: Tensor | None = None, input_bias: Tensor | None = None
    ) -> Any:
        how = (self.normalized_shape, self.weight, self.bias, self.eps)
        if residual is None:
            return layer_norm(input, *how, input_bias=input_bias)
        return add_layer_norm(input, residual, *how, input_bias=input_bias)


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm. With a residual it returns a pair, as functional.add_rms_norm."""

    def forward(
        self, input: Tensor, residual: Tensor | None = None, input_bias: Tensor | None = None
    ) -> Any:
        how = (self.normalized_shape, self.weight, self.eps)
        if residual is None:
            return rms_norm(input, *how, input_bias=input_bias)
        return add_rms_norm(input, residual, *how, input_bias=input_bias)


def norm(
    input: Tensor,
    residual: Tensor | None,
    input_bias: Tensor | None,
    normalized_shape: Shape,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    rms: bool,
) -> tuple[Tensor, Tensor]:
    """The norm of the sum of the given terms, and that sum."""
    shape = tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise ValueError(f"the input must end in {list(shape)}, it is {list(input.shape)}")
    if residual is not None:
        if residual.shape != input.shape:
            raise ValueError(
                f"residual must be {list(input.shape)} as the input, got {list(residual.shape)}"
            )
        dtype = torch.promote_types(input.dtype, residual.dtype)
        input, residual = input.to(dtype), rows(residual.to(dtype), shape)
    if eps is None:
        eps = torch.finfo(sum_dtype(input)).eps
    added, *weights = weights_beside(input, shape, input_bias=input_bias, weight=weight, bias=bias)
    x = rows(input, shape)
    if residual is None and added is None:
        y, *_ = norm_rows(x, *weights, eps, rms)
        return (y if len(shape) == 1 else y.view(input.shape)), input
    y, total, *_ = add_norm_rows(x, residual, added, *weights, eps, rms)
    return (y, total) if len(shape) == 1 else (y.view(input.shape), total.view(input.shape))


def rows(x: Tensor, shape: Shape) -> Tensor:
    """x with what is normed in its last dimension. shape: of that."""
    return (x if len(shape) == 1 else x.flatten(-len(shape))).contiguous()


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
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of the sum of x, residual, [..., cols], and input_bias, [cols]; one of the two is
    given. Returns the sum after the norm, else as norm_rows."""
    y, total, stats = torch.empty_like(x), torch.empty_like(x), stats_of(x, rms)
    training.norm(x, y, stats, weight, bias, residual, input_bias, total, eps, rms)
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
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), stats_of(x, rms)


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
) -> list[Tensor]:
    """Of the sum that was normed, [..., cols], and of those that are wanted of weight, bias and
    input_bias, [cols] of `dtype`. dtotal: the gradient of the sum itself."""
    found = gradients_of(total, dtype, wanted)
    rest = iter(found[1:])
    dgamma, dbeta, dbias = (next(rest) if needed else None for needed in wanted)
    training.norm_backward(total, dy, found[0], stats, weight, dgamma, dbeta, dbias, dtotal)
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
) -> list[Tensor]:
    return gradients_of(total, dtype, wanted)


def gradients_of(total: Tensor, dtype: torch.dtype, wanted: Sequence[bool]) -> list[Tensor]:
    """Memory for the results of norm_gradient."""
    found, cols = [torch.empty_like(total)], total.shape[-1]
    for needed in wanted:
        if needed:
            found.append(new_numbers(total, cols, dtype))
    return found


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *_ = inputs
    keep_sum(ctx, x, (weight, bias), output[1])


def keep_of_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, input_bias, weight, bias, *_ = inputs
    _, total, stats = output
    keep_sum(ctx, total, (weight, bias, input_bias), stats)
    ctx.set_materialize_grads(False)


def keep_sum(ctx: Any, total: Tensor, weights: tuple[Tensor | None, ...], stats: Tensor) -> None:
    """What the gradients need."""
    ctx.dtype = next((weight.dtype for weight in weights if weight is not None), total.dtype)
    ctx.save_for_backward(total, weights[0], stats)


def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, stats = ctx.saved_tensors
    _, wants_weight, wants_bias, *_ = ctx.needs_input_grad
    wanted = [wants_weight, wants_bias, False]
    found = norm_gradient(x, dy.contiguous(), None, weight, stats, ctx.dtype, wanted)
    dweight, dbias = found[1] if wants_weight else None, found[-1] if wants_bias else None
    return found[0], dweight, dbias, None, None


def backward_of_sum(
    ctx: Any, dy: Tensor | None, dtotal: Tensor | None, *_: Tensor
) -> tuple[Tensor | None, ...]:
    total, weight, stats = ctx.saved_tensors
    _, wants_residual, wants_input_bias, *rest = ctx.needs_input_grad[:5]
    wanted = [*rest, wants_input_bias]
    dy = torch.zeros_like(total) if dy is None else dy.contiguous()
    dtotal = None if dtotal is None else dtotal.contiguous()
    dx, *found = norm_gradient(total, dy, dtotal, weight, stats, ctx.dtype, wanted)
    dweight, dbias, dinput_bias = (found.pop(0) if needed else None for needed in wanted)
    return dx, dx if wants_residual else None, dinput_bias, dweight, dbias, None, None


norm_rows.register_autograd(backward, setup_context=keep)
add_norm_rows.register_autograd(backward_of_sum, setup_context=keep_of_sum)
