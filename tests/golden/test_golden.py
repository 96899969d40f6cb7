"""No change of the code changes an answer: tokens, the bits of scores and memory plans.

`python -m tests.golden --record` writes new records, after a change that means to.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_RECORD = 2  # an exit code


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_no_answer_differs(device: str) -> None:
    """In a process of its own: an engine reads once whether to tune its products."""
    command = [sys.executable, "-m", "tests.golden", "--check", "--device", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == NO_RECORD:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
