"""Blocks of memory: aligned, writable, and given back."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from decoding.models.weights.memory import block

LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("size", [0, 1, 4096, 5_000_001])
def test_blocks_are_aligned_and_writable(size: int) -> None:
    memory = block(size)
    assert memory.shape == (size,) and (size == 0 or memory.ctypes.data % 4096 == 0)
    memory.fill(7)
    assert bool((memory == 7).all())


@LINUX
def test_memory_comes_with_writing_and_goes_with_the_last_view() -> None:
    before, size = resident(), 400_000_000
    memory = block(size)
    assert resident() - before < size // 4
    memory.fill(1)
    view = memory[:10]
    assert resident() - before > size // 2
    del memory
    assert int(view.sum()) == 10
    del view
    gc.collect()
    assert resident() - before < size // 4


# Frees a thousand tensors of 100 kB with a live one behind them, as loading does.
PROGRAM = """
import torch
from decoding.models.weights.memory import trim
from tests.engine.test_memory import resident

tensors = [torch.ones(25_000) for _ in range(1000)]
last = torch.ones(25_000)
del tensors
kept = resident()
trim()
print(kept - resident())
"""


@LINUX
def test_trim_gives_back_what_malloc_keeps() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) > 50_000_000
