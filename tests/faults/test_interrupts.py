"""Ctrl-C at some moments of some commands; more of them and the others: interrupts.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.interrupts import Interrupted, Moment, interrupt, write_inputs


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.timeout(900)
def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert interrupt("translate", tmp_path, range(2), seed=0) == 0
    assert interrupt("embed", tmp_path, range(1), seed=0) == 0
    assert interrupt("split", tmp_path, range(2), seed=0) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.timeout(900)
def test_ctrl_c_while_a_job_starts_its_workers(tmp_path: Path) -> None:
    """Which are in their first imports, and have it too, as from a terminal."""
    write_inputs(tmp_path)
    job = Interrupted("job", tmp_path)
    moments = [Moment(job.seconds * part / 16, everywhere=True) for part in range(1, 9)]
    verdicts = {job.verdict(job.run(moment), moment) for moment in moments}
    # On a machine that was busy when the job was timed, it may end before.
    assert "interrupted" in verdicts <= {"interrupted", "python", "ended"}
