"""Layer norm and RMS norm, fused with the bias, dropout and residual that a Transformer has before
them: LightSeq2 (Wang et al. 2022) fuses those three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoding.nn.dropout import check_probability, new_seed
from decoding.nn.norm_operators import add_norm_rows, norm_rows
from decoding.nn.operators import sum_dtype, weights_beside

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
