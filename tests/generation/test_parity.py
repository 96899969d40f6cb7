"""The same answers as transformers, token for token: 500 cases of tests/fuzz/generate.py."""

from __future__ import annotations

import pytest

from tests.fuzz.generate import run
from tests.support.comparison import needs_newest

CASES = {"cpu": 25, "cuda": 10}  # of each part
PARTS = 20


@needs_newest
@pytest.mark.parametrize("part", range(PARTS))
def test_parity(part: int, device: str) -> None:
    cases = CASES[device]
    counts = run(seed=0, numbers=range(part * cases, (part + 1) * cases), device=device)
    assert counts["tie"] <= max(1, cases // 50), counts
