"""Ctrl-C at some moments of two commands; more of them and the others: interrupts.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.interrupts import interrupt, write_inputs


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.timeout(900)
def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert interrupt("translate", tmp_path, range(2), seed=0) == 0
    assert interrupt("embed", tmp_path, range(1), seed=0) == 0
