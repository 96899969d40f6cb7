"""How a linear weight lies on the CPU: the layout of csrc/kernels/linear, and int8 numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.models.weights.lazy import is_finite

PANEL = 64  # outputs in a panel; kPanel in csrc/kernels/linear/linear.h
LINE = 256  # bytes; an input of 64 float32 outputs, two of bfloat16, four of int8
STEPS = 127  # of int8 to either side of 0
NOISE = 0.02  # the most that a linear weight may have in int8; Gaussian ones have 0.007


class Quantised(NamedTuple):
    """W[n, k] ~ scale[n] * numbers[n, k]."""

    numbers: Tensor  # int8 [N, K], -127 to 127
    scale: Tensor  # float32 [N]
    sums: Tensor  # int32 [N], of numbers over k


def quantise(weight: Tensor) -> Quantised:
    """weight: [N, K], finite. Symmetric, with a scale for each output: its largest is 127.

    scale[n] = max_k |W[n, k]| / 127, or 1 where that is 0; ties round to the even number.
    """
    weight = weight.float()
    scale = weight.abs().amax(1) / STEPS
    scale[scale == 0] = 1
    numbers = (weight / scale[:, None]).round_().clamp_(-STEPS, STEPS).to(torch.int8)
    return Quantised(numbers, scale, numbers.sum(1, dtype=torch.int32))


def squares(weight: Tensor) -> tuple[float, float]:
    """weight: [N, K]. The sums of the squares of int8's steps, scale[n], and of the weight."""
    largest = [rows.abs().amax(1) for rows in torch.split(weight, PANEL)]
    steps = torch.cat(largest).double() / STEPS
    return float(steps @ steps), float(weight.double().norm() ** 2)


def noise(steps: float, length: float, inputs: int) -> float:
    """How far int8 is from a weight [N, K]: |W - scale * numbers| / |W|, to be expected where
    rounding errors are spread evenly over a step. Large where few inputs dwarf all others.

    steps, length: what squares() gives, or the sums of what it gives for parts."""
    return math.sqrt(inputs / 12 * steps / length) if length > 0 else 0.0


def panel_shape(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """[panels, lines, 64 g], where g inputs of an output lie together."""
    group = LINE // PANEL // dtype.itemsize
    return (-(-outputs // PANEL), -(-inputs // group), PANEL * group)


def fill_panels(
    panels: Tensor,
    weight: Tensor,
    first: int,
    scale: Tensor | None = None,
    sums: Tensor | None = None,
) -> bool:
    """Writes rows of a weight, float [n, K], in the panels' type as the outputs from `first` on,
    and zeros behind them to the end of their panel: [ceil(N / 64), ceil(K / g), 64 g]. Parts of a
    weight come in order. Returns whether all numbers are finite, in both types.

    scale, sums: [N], take what belongs to int8 (Quantised).
    """
    if scale is not None and sums is not None:
        end = first + len(weight)
        numbers, scale[first:end], sums[first:end] = quantise(weight)
    else:
        numbers = weight.to(panels.dtype)
    lines, group = panels.shape[1], panels.shape[2] // PANEL
    padded = torch.nn.functional.pad(numbers, (0, lines * group - weight.shape[1]))
    outputs = torch.arange(first, first + len(weight))
    places = panels.view(-1, lines, PANEL, group)
    places[outputs // PANEL, :, outputs % PANEL] = padded.view(-1, lines, group)
    behind = (first + len(weight)) % PANEL
    if behind:
        places[(first + len(weight)) // PANEL, :, behind:] = 0
    return is_finite(weight if numbers.dtype == torch.int8 else numbers)


def convert(to: Tensor, weight: Tensor) -> bool:
    """Writes a weight, float and contiguous, in the type of `to`, float32 or bfloat16 and of its
    shape. Returns whether all numbers are finite, in both types."""
    numbers = weight.to(to.dtype)
    to.copy_(numbers)
    return is_finite(numbers)


class Packer(NamedTuple):
    """What packs weights: these functions of torch, or on the CPU the engine's own."""

    fill: Callable[[Tensor, Tensor, int, Tensor | None, Tensor | None], bool] = fill_panels
    squares: Callable[[Tensor], tuple[float, float]] = squares
    convert: Callable[[Tensor, Tensor], bool] = convert
