"""Ids of many texts in one array, against lists of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from decoding.text.rows import Rows

ids = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6)
few = st.lists(st.integers(0, 99), max_size=2)


@given(rows=ids, begin=few, end=few, data=st.data())
def test_rows_are_lists(
    rows: list[list[int]], begin: list[int], end: list[int], data: st.DataObject
) -> None:
    found = Rows.of(rows)
    assert found.ids.dtype == np.int32 and found.lists() == rows
    assert len(found) == len(rows) and found.lengths.tolist() == list(map(len, rows))
    assert found.framed(begin, end).lists() == [[*begin, *row, *end] for row in rows]
    assert Rows.joined([found, found]).lists() == rows + rows
    others = Rows.of([[1] * len(row) for row in rows])
    assert found.followed_by(others).lists() == [row + [1] * len(row) for row in rows]
    keep = found.ids % 3 != 0
    assert found.kept(keep).lists() == [[i for i in row if i % 3] for row in rows]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    assert found.select(np.array(chosen, np.int64)).lists() == [rows[i] for i in chosen]
    at = sorted(set(chosen))
    new = [[*rows[i], 7] for i in at]
    expected = [new[at.index(i)] if i in at else row for i, row in enumerate(rows)]
    assert found.replaced(at, Rows.of(new)).lists() == expected


@given(rows=ids)
def test_tables(rows: list[list[int]]) -> None:
    table, there = Rows.of(rows).table(fill=5)
    width = max(map(len, rows), default=0)
    assert table.tolist() == [row + [5] * (width - len(row)) for row in rows]
    assert (there is None) == all(len(row) == width for row in rows)
    if there is not None:
        assert Rows.where(table, there).lists() == rows
