"""How a linear weight lies on the CPU: the layout of csrc/kernels/linear, and int8 numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from decoding.models.weights.dtypes import DTYPES, Numbers, Stored
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
    empty: (size) returns uint8 [size] on the engine's device. Raises MemoryError where there is no
        memory left.
    """

    fill: Callable[[Numbers, Numbers, int, Numbers | None, Numbers | None], bool]
    squares: Callable[[Numbers], tuple[float, float]]
    convert: Callable[[Numbers, Numbers], bool]
    empty: Callable[[int], Stored] = block
