"""What two ranks do for tests/kernels/collective: exchanges of GPUs, held to their formulas.

A job returns a text that says what was wrong, "" where nothing was.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from decoding import _kernels
from decoding.common.device import Device
from decoding.engine.ranks import Group, Ranks, join

SIZE, RANK = 2, int(os.environ.get("RANK", 0))
TYPES = (torch.float32, torch.float16, torch.bfloat16)
# A unit or less; rows that do not lie on units; as large as words take, and larger.
SHAPES = ((1, 3), (3, 61), (1, 4096), (16, 4096), (33, 2053), (160, 4096))
REPLAYS = 5


@cache
def ranks() -> Ranks:
    number = os.environ["DECODING_DEVICE"].partition(":")[2]
    torch.cuda.set_device(int(number or RANK))
    return join(Group(SIZE), 4096, Device("cuda", torch.cuda.current_device()))


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to("cuda", dtype)


def every_shape(check: Callable[[int, int, torch.dtype], bool]) -> str:
    """The cases that check(rows, cols, type) denies."""
    wrong = []
    for dtype in TYPES:
        for rows, cols in SHAPES:
            with ranks().call([f"{rows} {cols} {dtype}".encode()]):
                if not check(rows, cols, dtype):
                    wrong.append(f"{dtype} [{rows}, {cols}]")
                torch.cuda.synchronize()
    return ", ".join(wrong)


def sums(given: Any) -> str:
    """With bias and residual, which is y itself."""

    def check(rows: int, cols: int, dtype: torch.dtype) -> bool:
        parts = [numbers((rows, cols), seed, dtype) for seed in range(SIZE)]
        bias, residual = numbers((cols,), 7), numbers((rows, cols), 8, dtype)
        exact = sum_in_order(parts) + bias + residual.float()
        _kernels.all_reduce(ranks().gpus, residual, parts[RANK], bias, residual)
        return torch.equal(residual, exact.to(dtype))

    return every_shape(check)


def sum_in_order(parts: list[Tensor]) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total


def columns(given: Any) -> str:
    """In rows that are longer, whose ends stay."""

    def check(rows: int, cols: int, dtype: torch.dtype) -> bool:
        whole = numbers((rows, cols), 1, dtype)
        first, end = cols * RANK // SIZE, cols * (RANK + 1) // SIZE
        part = torch.full((rows, -(-(end - first) // 8) * 8), 9.0, dtype=dtype, device="cuda")
        part[:, : end - first] = whole[:, first:end]
        y = torch.full((rows, cols + 5), 7.0, dtype=dtype, device="cuda")
        _kernels.all_gather(ranks().gpus, y, part, cols)
        return torch.equal(y[:, :cols], whole) and bool((y[:, cols:] == 7.0).all())

    return every_shape(check)


def captured(given: Any) -> str:
    """A graph finds the number of each exchange when it is launched: x is doubled each time."""
    x = numbers((2, 512), 3)
    start = x.clone()
    graph = torch.cuda.CUDAGraph()
    with ranks().call([b"captured"]):
        with torch.cuda.graph(graph):
            _kernels.all_reduce(ranks().gpus, x, x)
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    return "" if torch.equal(x, start * SIZE**REPLAYS) else "other numbers"


JOBS = {job.__name__: job for job in (sums, columns, captured)}
