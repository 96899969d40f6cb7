"""Layer norm and RMS norm, fused with the bias and residual that a Transformer adds before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoding._C import training
from decoding.nn.operators import operator, sum_dtype, weights_beside

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
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
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
    weights = weights_beside(input, shape, input_bias=input_bias, weight=weight, bias=bias)
    y, total, *_ = norm_rows(rows(input, shape), residual, *weights, eps, rms)
    if residual is None and input_bias is None:
        total = input
    return (y, total) if len(shape) == 1 else (y.view(input.shape), total.view(input.shape))


def rows(x: Tensor, shape: Shape) -> Tensor:
    """x with what is normed in its last dimension. shape: of that."""
    return (x if len(shape) == 1 else x.flatten(-len(shape))).contiguous()


@operator("decoding::norm")
def norm_rows(
    x: Tensor,
    residual: Tensor | None,
    input_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, residual: [..., cols]; the others: [cols].

    Returns the norm and the sum that it is of, [..., cols]; of that sum, in the type of sums, the
    mean and the factor of the norm, [...]. What there is no need for is empty: a sum that is x,
    the mean of an RMS norm.
    """
    y, total, mean, rstd = unwritten(x, residual, input_bias, weight, bias, eps, rms)
    training.norm(
        x,
        y,
        residual=residual,
        bias=input_bias,
        gamma=weight,
        beta=bias,
        sum=None if residual is None and input_bias is None else total,
        mean=None if rms else mean,
        rstd=rstd,
        eps=eps,
        rms=rms,
    )
    return y, total, mean, rstd


@norm_rows.register_fake
def unwritten(
    x: Tensor,
    residual: Tensor | None,
    input_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of norm_rows."""
    plain = residual is None and input_bias is None
    total = x.new_empty(0) if plain else torch.empty_like(x)
    rstd = x.new_empty(x.shape[:-1], dtype=sum_dtype(x))
    return torch.empty_like(x), total, x.new_empty(0) if rms else torch.empty_like(rstd), rstd


@operator("decoding::norm_gradient")
def norm_gradient(
    total: Tensor,
    dy: Tensor,
    dtotal: Tensor | None,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    dtype: torch.dtype,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the sum that was normed, [..., cols], and of the wanted ones of input_bias, weight and
    bias, [cols] of `dtype`; empty where not wanted. dtotal: the gradient of the sum itself."""
    dx, *dweights = gradients_unwritten(total, dy, dtotal, weight, mean, rstd, dtype, wanted)
    dbias, dgamma, dbeta = (
        given if needed else None for given, needed in zip(dweights, wanted, strict=True)
    )
    training.norm_backward(
        total,
        dy,
        dx,
        dsum=dtotal,
        gamma=weight,
        mean=mean if mean.shape == rstd.shape else None,
        rstd=rstd,
        dgamma=dgamma,
        dbeta=dbeta,
        dbias=dbias,
    )
    return dx, *dweights


@norm_gradient.register_fake
def gradients_unwritten(
    total: Tensor,
    dy: Tensor,
    dtotal: Tensor | None,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    dtype: torch.dtype,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of norm_gradient."""
    cols = total.shape[-1]
    dbias, dgamma, dbeta = (
        total.new_empty(cols if needed else 0, dtype=dtype) for needed in wanted
    )
    return torch.empty_like(total), dbias, dgamma, dbeta


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, *weights, _, _ = inputs
    _, total, mean, rstd = output
    plain = residual is None and weights[0] is None
    ctx.dtype = next((given.dtype for given in weights if given is not None), x.dtype)
    ctx.save_for_backward(x if plain else total, weights[1], mean, rstd)
    ctx.set_materialize_grads(False)


def backward(
    ctx: Any, dy: Tensor | None, dtotal: Tensor | None, *_: Tensor
) -> tuple[Tensor | None, ...]:
    total, weight, mean, rstd = ctx.saved_tensors
    dy = torch.zeros_like(total) if dy is None else dy.contiguous()
    dtotal = None if dtotal is None or not dtotal.numel() else dtotal.contiguous()
    wanted = list(ctx.needs_input_grad[2:5])
    dx, *dweights = norm_gradient(total, dy, dtotal, weight, mean, rstd, ctx.dtype, wanted)
    of_weights = (given if needed else None for given, needed in zip(dweights, wanted, strict=True))
    return dx, dx if ctx.needs_input_grad[1] else None, *of_weights, None, None


norm_rows.register_autograd(backward, setup_context=keep)
