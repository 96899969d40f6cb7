"""Softmax over one axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from decoding._C import training
from decoding.nn.operators import operator


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """torch.nn.functional.softmax, fastest over the last axis. dtype: of the result, to which the
    input is cast first. Sums are float32 (float64 for float64)."""
    x = input if dtype is None else input.to(dtype)
    last = dim in (-1, x.ndim - 1)
    y: Tensor = softmax_rows((x if last else x.movedim(dim, -1)).contiguous())
    return y if last else y.movedim(-1, dim)


class Softmax(nn.Softmax):
    """torch.nn.Softmax; `dim` must be given."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.axis = dim

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, self.axis)


@operator("decoding::softmax")
def softmax_rows(x: Tensor) -> Tensor:
    """x: [..., cols]."""
    y = torch.empty_like(x)
    training.softmax(x, y)
    return y


@softmax_rows.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@operator("decoding::softmax_gradient")
def softmax_gradient(y: Tensor, dy: Tensor) -> Tensor:
    dx = torch.empty_like(y)
    training.softmax_backward(y, dy, dx)
    return dx


@softmax_gradient.register_fake
def _(y: Tensor, dy: Tensor) -> Tensor:
    return torch.empty_like(y)


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def backward(ctx: Any, dy: Tensor) -> Tensor:
    [y] = ctx.saved_tensors
    dx: Tensor = softmax_gradient(y, dy.contiguous())
    return dx


softmax_rows.register_autograd(backward, setup_context=keep)
