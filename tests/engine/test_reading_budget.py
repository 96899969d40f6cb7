"""How much is read between two steps, from what readings and steps have taken."""

from __future__ import annotations

import pytest

from decoding._kernels import ReadingBudget

MOST = 1024


def test_all_of_it_where_no_row_steps() -> None:
    assert ReadingBudget(MOST, timed=True).tokens(0, 0) == MOST
    assert ReadingBudget(MOST, timed=False).tokens(0, 9) == MOST


@pytest.mark.parametrize("timed", [True, False])
def test_an_eighth_where_times_are_not_known(timed: bool) -> None:
    budget = ReadingBudget(MOST, timed)
    if not timed:
        budget.has_read(10, 1.0)
        budget.has_stepped(100.0)
    assert budget.tokens(8, 0) == MOST // 8
    assert budget.tokens(8, 8) == MOST // 4, "as many rows could step, had they been read"
    assert budget.tokens(8, 0, others=True) == MOST // 4, "others wait, too"
    assert budget.tokens(1, 999) == MOST


def test_a_reading_takes_six_tenths_of_a_step() -> None:
    budget = ReadingBudget(MOST, timed=True)
    budget.has_read(100, 1.0)
    budget.has_stepped(2.0)
    assert budget.tokens(8, 0) == 120
    for _ in range(100):
        budget.has_stepped(3.0)
    assert 174 <= budget.tokens(8, 0) <= 180
    for _ in range(100):
        budget.has_read(300, 6.0)
    assert 86 <= budget.tokens(8, 0) <= 93
    assert budget.tokens(8, 4) == pytest.approx(1.5 * budget.tokens(8, 0), abs=1)


def test_bounds() -> None:
    slow = ReadingBudget(MOST, timed=True)
    slow.has_read(1, 1.0)
    slow.has_stepped(1e-6)
    assert slow.tokens(8, 0) == 4
    fast = ReadingBudget(MOST, timed=True)
    fast.has_read(1, 1e-6)
    fast.has_stepped(1.0)
    assert fast.tokens(8, 0) == MOST
    assert ReadingBudget(3, timed=False).tokens(8, 0) == 3
