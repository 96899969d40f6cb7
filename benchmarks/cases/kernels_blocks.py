"""What benchmarks.kernels times of what stands between products, in the sizes of Llama 3 8B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.cases.kernel_case import STEP_ROWS, Case, Place, Set
from decoding import _kernels as kernels

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
FFN, VOCABULARY = 14336, 128256


def rms_norm(place: Place, rows: int, cols: int, adds: bool) -> Case:
    def make() -> Set:
        gamma, x = place.floats(cols), place.random(rows, cols)
        residual = place.random(rows, cols) if adds else None
        return x, gamma, gamma.to(place.dtype), residual, torch.empty_like(x)

    def ours(s: Set) -> Any:
        x, gamma, _, residual, y = s
        kernels.layer_norm(x, gamma, None, y, 1e-5, rms=True, residual=residual, **place.how)
        return y

    def theirs(s: Set) -> Any:
        x, _, gamma, residual, _ = s
        y = functional.rms_norm(x, (cols,), gamma, 1e-5)
        return y if residual is None else y + residual

    name = f"{rows}x{cols}" + ", residual" * adds
    moved = (2 + adds) * rows * cols * place.dtype.itemsize + 4 * cols
    return Case(
        "rms_norm",
        name,
        moved,
        make,
        {"ours": ours, "torch": theirs},
        operations=(4 + adds) * rows * cols,
        warm=rows <= STEP_ROWS,
    )


def apply_rotary(place: Place, rows: int) -> Case:
    """Queries and keys; ours rotates them in place, again and again."""
    heads, half = HEADS + KV_HEADS, HEAD_DIM // 2
    frequencies = 500000.0 ** -(torch.arange(half, device=place.device) / half)[None]
    positions = place.ints(torch.arange(rows) % 4096)
    angles = positions[:, None] * frequencies
    sine, cosine = (f(angles)[:, None].to(place.dtype) for f in (torch.sin, torch.cos))
    how = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, **place.how}

    def ours(s: Set) -> Any:
        x, y = s
        kernels.apply_rotary(y, positions, frequencies, **how)
        return y

    def theirs(s: Set) -> Any:
        a, b = s[0].view(rows, heads, HEAD_DIM).chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(1)

    def make() -> Set:
        x = place.random(rows, heads * HEAD_DIM)
        return x, x.clone()

    moved = 2 * rows * heads * HEAD_DIM * place.dtype.itemsize
    name = f"{rows}x{heads}x{HEAD_DIM}"
    return Case(
        "rotate",
        name,
        moved,
        make,
        {"ours": ours, "torch": theirs},
        operations=3 * rows * heads * HEAD_DIM,
        warm=rows <= STEP_ROWS,
    )


def gate(place: Place, rows: int) -> Case:
    def make() -> Set:
        x = place.random(rows, 2 * FFN)
        return x, x.new_empty(rows, FFN)

    def ours(s: Set) -> Any:
        kernels.gate(*s, "silu", **place.how)
        return s[1]

    def theirs(s: Set) -> Any:
        first, second = s[0].chunk(2, -1)
        return functional.silu(first) * second

    moved = 3 * rows * FFN * place.dtype.itemsize
    return Case(
        "gate",
        f"{rows}x{FFN}",
        moved,
        make,
        {"ours": ours, "torch": theirs},
        operations=5 * rows * FFN,
        warm=rows <= STEP_ROWS,
    )


def soft_cap(place: Place, rows: int) -> Case:
    """Ours caps in place, what is capped once more."""

    def make() -> Set:
        x = place.random(rows, VOCABULARY)
        return x, x.clone()

    def ours(s: Set) -> Any:
        kernels.soft_cap(s[1], VOCABULARY, 30.0, **place.how)
        return s[1]

    def theirs(s: Set) -> Any:
        return 30.0 * torch.tanh(s[0] / 30.0)

    moved = 2 * rows * VOCABULARY * place.dtype.itemsize
    name = f"{rows}x{VOCABULARY}"
    return Case(
        "soft_cap",
        name,
        moved,
        make,
        {"ours": ours, "torch": theirs},
        operations=3 * rows * VOCABULARY,
        warm=rows <= STEP_ROWS,
    )


def cases(place: Place) -> Iterator[Case]:
    """What a full run times."""
    for rows in (1, 32, 512) if place.device == "cpu" else (1, 32, 512, 8192):
        yield rms_norm(place, rows, 4096, adds=False)
        yield rms_norm(place, rows, 2304, adds=True)
        yield apply_rotary(place, rows)
        yield gate(place, rows)
    for rows in (1, 32, 128):
        yield soft_cap(place, rows)
