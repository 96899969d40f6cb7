"""A moment of soak.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.faults.soak import Soak, frees_interned, soak


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_moment_of_everything(tmp_path: Path, device: str) -> None:
    """What the process has is looked at in long runs alone: here it is that of other tests, too."""
    torch.set_num_threads(1)
    run = Soak(tmp_path, device)
    assert len(soak(run, rounds=2, interval=1, seed=0, device=device)) == 2
    assert run.counts.total() > 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.skipif(not frees_interned(), reason="this Python keeps them, whatever their number")
def test_strings_that_come_and_go_take_no_memory_in_a_long_run() -> None:
    """Of a process of its own, as the run's is."""
    code = """
import sys
from tests.faults.soak import GROWTH, Measured, resize_interned

stay = [sys.intern(f"stays {i}") for i in range(100_000)]
resize_interned()
before = Measured.now("cpu").memory
for i in range(400_000):
    sys.intern(f"is an act's {i}")
assert Measured.now("cpu").memory - before < GROWTH
"""
    subprocess.run([sys.executable, "-c", code], check=True)
