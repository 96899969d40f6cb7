"""A moment of soak.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.faults.soak import Soak, soak


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_moment_of_everything(tmp_path: Path, device: str) -> None:
    """What the process has is looked at in long runs alone: here it is that of other tests, too."""
    torch.set_num_threads(1)
    run = Soak(tmp_path, device)
    assert len(soak(run, rounds=2, interval=1, seed=0, device=device)) == 2
    assert run.counts.total() > 0
