"""Positions that no file holds, float32: sinusoids, rotary frequencies, ALiBi's slopes."""

from __future__ import annotations

import math

import numpy as np

from decoding.models.weights.dtypes import Array


def sinusoids(positions: int, hidden: int) -> Array:
    """Marian's position table, [positions, hidden]: all sines, then all cosines.

    Vaswani et al. 2017 interleave the two; the frequencies are the same.
    """
    sines = (hidden + 1) // 2
    channel = np.arange(hidden, dtype=np.float64)
    frequency = 10000.0 ** (-2 * np.where(channel < sines, channel, channel - sines) / hidden)
    angle = np.arange(positions, dtype=np.float64)[:, None] * frequency
    return np.where(channel < sines, np.sin(angle), np.cos(angle)).astype(np.float32)


def fairseq_sinusoids(positions: int, hidden: int, first: int) -> Array:
    """fairseq's position table, [positions, hidden]: all sines, then all cosines.

    Its wave lengths reach 10000 * 2 pi, as in tensor2tensor, not only close to it as above. first:
    the position that its first row is for, which in fairseq is the pad token's id + 1.
    """
    half = hidden // 2
    if half < 2:
        raise ValueError(f"sinusoidal positions need a width of 4 or more, got {hidden}")
    # As there in float32, with each result rounded: these errors are part of published models.
    step = -math.log(10000) / (half - 1)
    frequency = rounded(np.exp, np.arange(half, dtype=np.float32) * step)
    angle = np.arange(first, first + positions, dtype=np.float32)[:, None] * frequency
    table = np.concatenate([rounded(np.sin, angle), rounded(np.cos, angle)], 1)
    return np.pad(table, ((0, 0), (0, hidden % 2)))


def rotary_frequencies(size: int, base: float = 10000.0) -> Array:
    """[1, size / 2], the angles by which pairs rotate from a position to the next."""
    return 1 / wave_lengths(size, base)[None]


def wave_lengths(size: int, base: Array | float) -> Array:
    """[..., size / 2], of bases [..., 1]: how many positions a pair takes to rotate by 1."""
    exponent = np.arange(0, size, 2, dtype=np.float32) / size
    return rounded(np.power, np.asarray(base, np.float32), exponent)


def rounded(function: np.ufunc, *numbers: Array) -> Array:
    """A function of float32 numbers as float32, rounded once: what NumPy's own functions of float32
    give depends on the CPU."""
    found: Array = function(*(each.astype(np.float64) for each in numbers))
    return found.astype(np.float32)


def alibi_slopes(heads: int) -> Array:
    """[heads] (Press et al. 2022): 2^(-8 i / heads), where heads are a power of two; else those of
    the power below, then every other one of twice as many."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return np.array((slopes + between)[:heads], np.float32)
