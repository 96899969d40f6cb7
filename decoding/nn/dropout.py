"""Dropout that stores no mask: the backward pass draws the same numbers again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from decoding._C import training as engine
from decoding.nn.operators import is_traced, operator

PHILOX_WORDS = 4  # that torch's generator of a GPU advances by, at least
ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: seeds of neighbouring offsets lie far apart


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """torch.nn.functional.dropout: 0 with probability p, else input / (1 - p).

    What is dropped follows from torch's generator of the device, so torch.manual_seed repeats it;
    it drops other elements than torch itself. Raises ValueError for a p that is none.
    """
    check_probability(p)
    if not training or p == 0:
        return input
    y: Tensor = drop(input.contiguous(), p, new_seed(input.device))
    return y


class Dropout(nn.Dropout):
    """torch.nn.Dropout, not in place."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p)
        if inplace:
            raise NotImplementedError("inplace: torch.nn.Dropout has it")

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


def check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"the probability of dropping must be from 0 to 1, got {p}")


def new_seed(device: torch.device) -> Tensor:
    """A seed, int64 [1], from the device's generator. A CUDA graph draws a new one in each replay;
    else that of a GPU stays on the CPU, which takes no kernel."""
    if device.type != "cuda" or is_traced() or torch.cuda.is_current_stream_capturing():
        return torch.randint(2**63 - 1, (1,), device=device)
    generator = torch.cuda.default_generators[device.index]
    offset = generator.get_offset()
    generator.set_offset(offset + PHILOX_WORDS)
    return torch.tensor([(generator.initial_seed() + offset * ODD) % 2**63])


@operator("decoding::dropout")
def drop(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """seed: int64 [1]; equal seeds drop the same elements."""
    y = torch.empty_like(x)
    engine.dropout(x, y, p, seed)
    return y


@drop.register_fake
def _(x: Tensor, p: float, seed: Tensor) -> Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.p, seed = inputs
    ctx.save_for_backward(seed)


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    [seed] = ctx.saved_tensors
    return drop(dy.contiguous(), ctx.p, seed), None, None


drop.register_autograd(backward, setup_context=keep)
