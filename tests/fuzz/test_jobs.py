"""120 damaged corpora and folders of jobs; more of them: jobs.py."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyarrow")

from tests.fuzz.job_inputs import write_sound
from tests.fuzz.jobs import Case, fuzz

CASES = 120


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
@pytest.mark.timeout(300)
def test_damaged_corpora_are_refused_or_answered_row_by_row() -> None:
    """Longer runs: python -m tests.fuzz.jobs --cases 20000."""
    counts = fuzz(seed=0, numbers=range(CASES))
    assert not counts["bad"], "see above"
    assert min(counts["done"], counts["refused"]) > CASES / 8, "too tame or too wild"


def test_wrong_rows_are_seen(tmp_path: Path) -> None:
    case = Case(0, 0, tmp_path / "case")
    row = {"text": "a", "capitals": "A", "length": 1}
    assert case._fits(row, failed=False)
    assert not case._fits(row | {"capitals": "B"}, failed=False)
    assert not case._fits(row, failed=True)


def test_a_case_is_a_function_of_its_number(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    both = [write_sound(tmp_path / name, Random(3)) for name in ("a", "b")]
    assert both[0].read_bytes() == both[1].read_bytes()
