"""Positions of tokens in self-attention, in plain torch: rotary angles, biases by distance,
windows. Shapes as in blocks.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decoding.models.layouts.positions import alibi_slopes
from decoding.models.spec import RotarySpec, StackSpec


@dataclass(frozen=True)
class Places:
    """The positions of a pass's tokens."""

    at: Tensor  # [T] or [B, T], positions
    mask: Tensor | None  # bool, True where a key is seen, broadcast to [B, N, T, T]; None: causal
    angles: Tensor | None = None  # [T, size / 2] or [B, T, size / 2], of rotary positions
    biases: tuple[Tensor, ...] = ()  # of each layer [N, T, T] or [B, N, T, T], added to the scores

    def seen(self, window: int) -> Tensor | None:
        """As `mask`, for keys at a distance below `window` before their query; 0: all keys."""
        if window == 0:
            return self.mask
        near = distances(self.at).unsqueeze(-3) < window
        return near & (causal(near) if self.mask is None else self.mask)


def causal(like: Tensor) -> Tensor:
    """bool [T, S] for scores like [..., T, S]."""
    return torch.ones(like.shape[-2:], dtype=torch.bool, device=like.device).tril()


def distances(at: Tensor) -> Tensor:
    """The queries' positions less the keys': [T, T] or [B, T, T]."""
    return at[..., :, None] - at[..., None, :]


def angles_of(frequencies: Tensor, at: Tensor, rotary: RotarySpec) -> Tensor:
    """[T, size / 2] or [B, T, size / 2]. frequencies: [tables, size / 2]; at: [T] or [B, T], of the
    whole rows."""
    table = (at.amax(-1) + 1 - rotary.original).clamp(0, rotary.tables - 1)
    return at[..., None] * frequencies[table].unsqueeze(-2)


def rotated(x: Tensor, angles: Tensor, rotary: RotarySpec) -> Tensor:
    """Su et al. 2021. x: [B, T, N, D], the first `rotary.size` numbers of each head are rotated;
    angles: [T, size / 2] or [B, T, size / 2]."""
    pairs, rest = x[..., : rotary.size], x[..., rotary.size :]
    first, second = (
        (pairs[..., 0::2], pairs[..., 1::2]) if rotary.interleaved else pairs.chunk(2, -1)
    )
    cosine = (angles.cos() * rotary.factor).unsqueeze(-2).to(x.dtype)
    sine = (angles.sin() * rotary.factor).unsqueeze(-2).to(x.dtype)
    both = (first * cosine - second * sine, second * cosine + first * sine)
    joined = torch.stack(both, -1).flatten(-2) if rotary.interleaved else torch.cat(both, -1)
    return torch.cat([joined, rest], -1)


def position_bias(spec: StackSpec) -> nn.Parameter | None:
    """The weight of a stack's biases by distance, see StackSpec."""
    heads = spec.sizes(0).heads
    if spec.position_bias == "alibi":
        return nn.Parameter(torch.from_numpy(alibi_slopes(heads)), requires_grad=False)
    if spec.position_bias == "relative":
        layers = (spec.layers,) if spec.bias_by_layer else ()
        return nn.Parameter(torch.zeros(*layers, heads, 2 * spec.reach + 1))
    return None


def biases_of(spec: StackSpec, weight: Tensor | None, at: Tensor) -> tuple[Tensor, ...]:
    """Places.biases. weight: as `position_bias` makes."""
    if weight is None:
        return ()
    if spec.bias_by_layer:
        return tuple(bias_of(spec, table, at) for table in weight)
    return (bias_of(spec, weight, at),) * spec.layers


def bias_of(spec: StackSpec, weight: Tensor, at: Tensor) -> Tensor:
    """[N, T, T] or [B, N, T, T]. weight: of a layer."""
    distance = distances(at)
    if spec.position_bias == "alibi":
        return -weight[:, None, None] * distance.unsqueeze(-3)
    entry = distance.clamp(-spec.reach, spec.reach) + spec.reach
    return weight.t()[entry].movedim(-1, -3)
