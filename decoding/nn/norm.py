"""Layer norm and RMS norm, fused with the bias, dropout and residual that a Transformer has before
them: LightSeq2 (Wang et al. 2022) fuses those three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoding._C import training
from decoding.nn.dropout import check_probability, new_seed
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
    dropout: float = 0.0,
) -> Tensor:
    """torch.nn.functional.layer_norm of dropout(input + input_bias).

    weight, bias, input_bias: [normalized_shape]; beside half precision they may be float32. The
    result has the input's type, under autocast too (where torch makes it float32 on a GPU); sums
    are float32, or float64 for float64. dropout: the probability of 0; what is dropped follows from
    torch's generator of the device and is not stored. Raises ValueError for shapes that do not fit
    and for a probability that is none.
    """
    weights = (input_bias, weight, bias)
    y, _ = norm(input, None, weights, normalized_shape, eps, dropout, rms=False)
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
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The layer norm of dropout(input + input_bias) + residual, and that sum, which the next block
    adds to.

    residual: of the input's shape; of another type, both take the wider one. Else as `layer_norm`.
    """
    weights = (input_bias, weight, bias)
    return norm(input, residual, weights, normalized_shape, eps, dropout, rms=False)


def rms_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    input_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """torch.nn.functional.rms_norm of dropout(input + input_bias); the rest as for `layer_norm`.

    eps None: the rounding step of the type that sums have.
    """
    weights = (input_bias, weight, None)
    y, _ = norm(input, None, weights, normalized_shape, eps, dropout, rms=True)
    return y


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    input_bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """As `add_layer_norm`, with the RMS norm of the sum."""
    weights = (input_bias, weight, None)
    return norm(input, residual, weights, normalized_shape, eps, dropout, rms=True)


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm. With a residual it returns a pair, as functional.add_layer_norm. dropout:
    in training mode."""

    def forward(
        self,
        input: Tensor,
        residual: Tensor | None = None,
        input_bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Any:
        weights = (input_bias, self.weight, self.bias)
        dropout = dropout if self.training else 0.0
        found = norm(input, residual, weights, self.normalized_shape, self.eps, dropout, rms=False)
        return found[0] if residual is None else found


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm. With a residual it returns a pair, as functional.add_rms_norm. dropout: in
    training mode."""

    def forward(
        self,
        input: Tensor,
        residual: Tensor | None = None,
        input_bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Any:
        weights = (input_bias, self.weight, None)
        dropout = dropout if self.training else 0.0
        found = norm(input, residual, weights, self.normalized_shape, self.eps, dropout, rms=True)
        return found[0] if residual is None else found


def norm(
    input: Tensor,
    residual: Tensor | None,
    weights: tuple[Tensor | None, Tensor | None, Tensor | None],
    normalized_shape: Shape,
    eps: float | None,
    dropout: float,
    rms: bool,
) -> tuple[Tensor, Tensor]:
    """The norm of dropout(input + input_bias) + residual, and what was normed. weights: input_bias,
    weight and bias."""
    shape = tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise ValueError(f"the input must end in {list(shape)}, it is {list(input.shape)}")
    check_probability(dropout)
    like = input  # has the type of the sum
    if residual is not None:
        if residual.shape != input.shape:
            raise ValueError(
                f"residual must be {list(input.shape)} as the input, got {list(residual.shape)}"
            )
        if residual.dtype != input.dtype:
            residual = residual.to(torch.promote_types(input.dtype, residual.dtype))
        like = residual = rows(residual, shape)
    if eps is None:
        eps = torch.finfo(sum_dtype(like)).eps
    input_bias, weight, bias = weights
    added, *scales = weights_beside(like, shape, input_bias=input_bias, weight=weight, bias=bias)
    x = rows(input, shape)
    if residual is None and added is None and dropout == 0:
        y, *_ = norm_rows(x, *scales, eps, rms)
        return (y if len(shape) == 1 else y.view(input.shape)), input
    seed = new_seed(x.device) if dropout else None
    y, total, *_ = add_norm_rows(x, residual, added, *scales, eps, rms, dropout, seed)
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
    dropout: float,
    seed: Tensor | None,
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
    dropout: float,
    seed: Tensor | None,
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
