"""How a linear weight lies on the CPU, and a quantised one on a GPU: the layouts of
csrc/kernels/linear, and int8 numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from decoding.models.weights.dtypes import DTYPES, Array, Numbers, Stored
from decoding.models.weights.memory import block

PANEL = 64  # outputs in a panel; kPanel in csrc/kernels/linear/linear.h
LINE = 256  # bytes; an input of 64 float32 outputs, two of bfloat16, four of int8
STEPS = 127  # of int8 to either side of 0
NOISE = 0.02  # the most that a linear weight may have in int8; Gaussian ones have 0.007


def noise(steps: float, length: float, inputs: int) -> float:
    """How far int8 is from a weight [N, K]: |W - scale * numbers| / |W|, to be expected where
    rounding errors are spread evenly over a step. Large where few inputs dwarf all others.

    steps, length: what Packer.squares gives, or the sums of what it gives for parts."""
    return math.sqrt(inputs / 12 * steps / length) if length > 0 else 0.0


def panel_shape(outputs: int, inputs: int, dtype: str) -> tuple[int, int, int]:
    """[panels, lines, 64 g], where g inputs of an output lie together."""
    group = LINE // PANEL // DTYPES[dtype].itemsize
    return (-(-outputs // PANEL), -(-inputs // group), PANEL * group)


def rows_of_panels(panels: Array, outputs: int, inputs: int) -> Array:
    """[N, K], a copy, of panels of another type than int8."""
    lines = panels.view(np.uint32).reshape(len(panels), -1, PANEL)
    rows = np.ascontiguousarray(lines.swapaxes(1, 2)).reshape(-1, lines.shape[1])
    return rows.view(panels.dtype)[:outputs, :inputs]


def int8_panels(numbers: Array) -> Array:
    """Of int8 numbers [N, K], or of other bytes."""
    outputs, inputs = numbers.shape
    shape = panel_shape(outputs, inputs, "int8")
    rows = np.zeros((shape[0] * PANEL, shape[1] * 4), np.int8)
    rows[:outputs, :inputs] = numbers
    lines = rows.view(np.uint32).reshape(shape[0], PANEL, shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(lines).view(np.int8).reshape(shape)


def quantised_stride(inputs: int) -> int:
    """Bytes of an output's row on a GPU, whose inputs lie in groups of 16."""
    return -(-inputs // 16) * 16


class Packer(NamedTuple):
    """The engine's functions that convert weights, which are float32, float16 or bfloat16 and
    contiguous (csrc/kernels/linear/pack.h), and what gives the memory for them.

    fill: (panels, weight, first, scale, sums) writes rows of a weight, [n, K], in the panels' type
        as the outputs from `first` on, and zeros behind them to the end of their panel. Parts of a
        weight come in order. scale, sums: [N], of int8 alone. Returns whether all numbers are
        finite, in both types.
    convert: (to, weight) writes a weight in the type of `to`, a float one and of its shape. Returns
        the same.
    squares: (weight) returns the sums of the squares of int8's steps, scale[n], and of the weight.
    interleave: (rows, panels, inputs) writes int8 panels of N outputs as the rows of a GPU, int8
        [N, quantised_stride(inputs)].
    empty: (size) returns uint8 [size] on the engine's device. Raises MemoryError where there is no
        memory left.
    """

    fill: Callable[[Numbers, Numbers, int, Numbers | None, Numbers | None], bool]
    squares: Callable[[Numbers], tuple[float, float]]
    convert: Callable[[Numbers, Numbers], bool]
    interleave: Callable[[Array, Array, int], None]
    empty: Callable[[int], Stored] = block
