"""Positions of tokens in plain torch: position tables, and in self-attention rotary angles, biases
by distance, windows. Shapes as in blocks.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.spec import RotarySpec, StackSpec


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Marian's position table, float32 [positions, hidden]: all sines, then all cosines.
    On the CPU, whatever the default device is, as all that is computed here.

    Vaswani et al. 2017 interleave the two; the frequencies are the same.
    """
    sines = (hidden + 1) // 2
    channel = torch.arange(hidden, dtype=torch.float64, device="cpu")
    frequency = 10000.0 ** (-2 * torch.where(channel < sines, channel, channel - sines) / hidden)
    angle = torch.arange(positions, dtype=torch.float64, device="cpu")[:, None] * frequency
    return torch.where(channel < sines, angle.sin(), angle.cos()).float()


def fairseq_sinusoids(positions: int, hidden: int, first: int) -> Tensor:
    """fairseq's position table, float32 [positions, hidden]: all sines, then all cosines.

    Its wave lengths reach 10000 * 2 pi, as in tensor2tensor, not only close to it as above. first:
    the position that its first row is for, which in fairseq is the pad token's id + 1.
    """
    half = hidden // 2
    if half < 2:
        raise ValueError(f"sinusoidal positions need a width of 4 or more, got {hidden}")
    # In float32, as there: the angles' rounding errors are part of published models.
    frequency = (torch.arange(half).float() * -(math.log(10000) / (half - 1))).exp()
    angle = torch.arange(first, first + positions).float()[:, None] * frequency
    return F.pad(torch.cat([angle.sin(), angle.cos()], 1), (0, hidden % 2))


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


def rotary_frequencies(size: int, base: float = 10000.0) -> Tensor:
    """float32 [1, size / 2], the angles by which pairs rotate from a position to the next."""
    return 1.0 / base ** (torch.arange(0, size, 2, device="cpu").float() / size)[None]


def angles_of(frequencies: Tensor, at: Tensor, rotary: RotarySpec) -> Tensor:
    """[T, size / 2] or [B, T, size / 2]. frequencies: [tables, size / 2]; at: [T] or [B, T], of the
    whole rows."""
    table = (at.amax(-1) + 1 - rotary.original).clamp(0, rotary.tables - 1)
    return at[..., None] * frequencies[table].unsqueeze(-2)


def turned(x: Tensor, angles: Tensor, rotary: RotarySpec) -> Tensor:
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


def alibi_slopes(heads: int) -> Tensor:
    """float32 [heads] (Press et al. 2022): 2^(-8 i / heads), where heads are a power of two; else
    those of the power below, then every other one of twice as many."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return torch.tensor((slopes + between)[:heads], device="cpu")


def position_bias(spec: StackSpec) -> nn.Parameter | None:
    """The weight of a stack's biases by distance, see StackSpec."""
    heads = spec.sizes(0).heads
    if spec.position_bias == "alibi":
        return nn.Parameter(alibi_slopes(heads), requires_grad=False)
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
