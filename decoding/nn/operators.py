"""What the operators share: the types of what they compute."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_dtype(x: Tensor) -> torch.dtype:
    """What sums over x are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """As torch.autocast hands them to a product."""
    device = next(x.device.type for x in tensors if x is not None)
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def weights_beside(
    x: Tensor, shape: tuple[int, ...], **weights: Tensor | None
) -> list[Tensor | None]:
    """Weights of that shape in one dimension, and in one type: x's, or float32 where x has half
    precision and one of them is float32."""
    dtype, given = x.dtype, [weight for weight in weights.values() if weight is not None]
    if dtype.itemsize == 2 and any(weight.dtype == torch.float32 for weight in given):
        dtype = torch.float32
    for name, weight in weights.items():
        if weight is not None and tuple(weight.shape) != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {list(weight.shape)}")
    return [
        None if weight is None else weight.to(dtype).reshape(-1).contiguous()
        for weight in weights.values()
    ]
