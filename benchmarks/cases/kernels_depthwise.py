"""What benchmarks.kernels times of depthwise convolution, in the sizes of Wu et al. 2019.

The limit is what must be moved: csrc/kernels/conv/depthwise.h counts the intensity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.cases.kernel_case import STEP_ROWS, Case, Place, Set
from decoding import _kernels as kernels

HEADS, HEAD_DIM = 16, 64
SIZES = (3, 7, 15, 31)  # K


def packed(place: Place, sentences: int, longest: int, size: int, made: bool) -> Case:
    """An encoder's, of sentences from 0.2 to 1.0 of the longest; torch has padded rows."""
    lengths = torch.linspace(0.2 * longest, longest, sentences).round().int()
    tokens, left = int(lengths.sum()), size // 2
    offsets = place.ints(functional.pad(lengths.cumsum(0), (1, 0)))
    valid = (torch.arange(longest) < lengths[:, None]).to(place.device)
    places = valid.flatten().nonzero()[:, 0]  # beforehand: it waits for the GPU

    def make() -> Set:
        x = place.random(tokens, HEADS, HEAD_DIM)
        padded = x.new_zeros(sentences, longest, HEADS * HEAD_DIM)
        padded[valid] = x.flatten(1)
        return x, padded.transpose(1, 2).contiguous(), kernel(place, tokens, size, made), x.clone()

    def ours(s: Set) -> Any:
        x, _, given, y = s
        name = "scores" if made else "weights"
        how = {"longest": longest, name: given, **place.how}
        kernels.packed_depthwise(x, offsets, y, False, **how)
        return y

    def theirs(s: Set) -> Any:
        _, padded, given, _ = s
        if not made:
            weight = given.to(place.dtype).repeat_interleave(HEAD_DIM, 0)[:, None]
            return functional.conv1d(padded, weight, padding=left, groups=len(weight))
        spread = given.new_zeros(sentences * longest, HEADS, size)
        spread = spread.index_copy_(0, places, given.softmax(-1)).unflatten(0, (sentences, longest))
        windows = functional.pad(padded, (left, left)).unfold(2, size, 1)  # [B, C, T, K]
        windows = windows.view(sentences, HEADS, HEAD_DIM, longest, size)
        return torch.einsum("bndtk,btnk->bndt", windows, spread).flatten(1, 2)

    def packed_rows(y: Tensor) -> Tensor:
        return y.transpose(1, 2)[valid].view(tokens, HEADS, HEAD_DIM)

    return Case(
        "packed_depthwise",
        f"{sentences}x{longest} K{size}" + ", dynamic" * made,
        2 * tokens * HEADS * HEAD_DIM * place.dtype.itemsize
        + taps_bytes(place, tokens, size, made),
        make,
        {"ours": ours, "torch": theirs},
        operations=2 * size * tokens * HEADS * HEAD_DIM,
        comparable={"torch": packed_rows},
    )


def decode(place: Place, batch: int, beams: int, size: int, made: bool) -> Case:
    """The new token of each row, in a history that is longer; torch has the inputs gathered."""
    rows, position = batch * beams, 63
    active, state = place.active(batch, 2, position), place.ints([2, batch])
    slots = place.ints(torch.arange(rows)).view(1, rows, 1).repeat(2, 1, position + 1)
    newest = position % size

    def make() -> Set:
        x, inputs = (place.random(rows, HEADS, *more) for more in ((HEAD_DIM,), (size, HEAD_DIM)))
        inputs[:, :, newest] = x
        ordered = inputs.roll(size - 1 - newest, 2)
        return x, inputs, ordered, kernel(place, rows, size, made), torch.empty_like(x)

    def ours(s: Set) -> Any:
        x, inputs, _, given, y = s
        how = {"scores" if made else "weights": given, **place.how}
        kernels.decode_depthwise(x, inputs, slots, active, state, y, beams, **how)
        return y

    def theirs(s: Set) -> Any:
        given = s[3].softmax(-1) if made else s[3].to(place.dtype).expand(rows, -1, -1)
        return (given[:, :, None] @ s[2])[:, :, 0]

    numbers = rows * HEADS * HEAD_DIM * (size + 2)
    return Case(
        "decode_depthwise",
        f"{batch}x{beams} K{size}" + ", dynamic" * made,
        numbers * place.dtype.itemsize + taps_bytes(place, rows, size, made),
        make,
        {"ours": ours, "torch": theirs},
        operations=2 * size * rows * HEADS * HEAD_DIM,
        warm=rows <= STEP_ROWS,
    )


def kernel(place: Place, rows: int, size: int, made: bool) -> Tensor:
    """Scores of each row, or weights."""
    return place.random(rows, HEADS, size) if made else place.floats(HEADS, size).softmax(-1)


def taps_bytes(place: Place, rows: int, size: int, made: bool) -> int:
    return HEADS * size * (rows * place.dtype.itemsize if made else 4)


def cases(place: Place) -> Iterator[Case]:
    """What a full run times."""
    sentences, longest = (8, 64) if place.device == "cpu" else (128, 256)
    for made in (False, True):
        for size in SIZES:
            yield packed(place, sentences, longest, size, made)
        for batch, beams in ((1, 1), (8, 4), (128, 4)):
            yield decode(place, batch, beams, 31, made)
