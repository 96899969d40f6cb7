"""Rows of CSV: where they end, and that what is written is read."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.corpus.formats.blocks import cells_of, csv_rows, cut
from decoding.corpus.formats.writing import joined

TEXTS = st.text('",\n\r ab')


def test_quotes_in_the_middle_of_a_cell_are_text() -> None:
    rows = ["id,text", '1,ein Monitor mit 24" Zoll', '2,ein Rad mit 28" Felgen', "3,ein Morgen"]
    found = cut(io.BytesIO("\n".join(rows).encode()), "csv", "in.csv", "utf-8")
    assert [cells_of(row.decode(), "csv") for row in found] == [row.split(",") for row in rows]


def records(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@settings(max_examples=1000)
@given(TEXTS)
def test_rows_of_csv_end_where_they_do_for_other_readers(text: str) -> None:
    """Wherever quotes are. Only a lone \\r leaves two rows in one, which is refused."""
    text += "\nend"
    expected = records(text)
    rows = csv_rows(io.BytesIO(text.encode()), "in.csv")
    if expected[-1] != ["end"]:  # a quoted cell has it
        with pytest.raises(ValueError, match="in.csv, line .*: a quote is opened here and never"):
            list(rows)
        return
    found = [(row, records(row.decode())) for row in rows]
    assert [record for _, some in found for record in some] == expected
    for row, some in found:
        assert len(some) == 1 or re.search(rb"\r(?!\n)", row)
        if len(some) > 1:
            with pytest.raises(ValueError, match="no row of CSV"):
                cells_of(row.decode(), "csv")


def by_csv(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def with_few_quotes(cells: list[str]) -> str:
    """As other programs write: quotes are left alone where no reader needs others around them."""
    needs = re.compile(r'^$|^"|[,\r\n]')
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
    pairs = zip(cells, quoted, strict=True)
    return ",".join(both if needs.search(cell) else cell for cell, both in pairs) + "\n"


@pytest.mark.parametrize("write_row", [partial(joined, "csv"), by_csv, with_few_quotes])
@given(st.lists(st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_written_rows_of_csv_are_read(
    write_row: Callable[[list[str]], str], table: list[list[str]]
) -> None:
    text = "".join(map(write_row, table))
    assert records(text) == table
    rows = cut(io.BytesIO(text.encode()), "csv", "in.csv", "utf-8")
    assert [cells_of(row.decode(), "csv") for row in rows] == table


def test_a_cell_may_be_long() -> None:
    assert cells_of("1," + 200_000 * "a", "csv") == ["1", 200_000 * "a"]


def test_a_quote_that_is_never_closed_is_found_before_the_memory_is_full() -> None:
    lines = chain([b"a\n", b'b,"c\n'], repeat(b"d" * (1 << 20) + b"\n"))
    rows = csv_rows(lines, "in.csv")
    assert next(rows) == b"a\n"
    with pytest.raises(ValueError, match="in.csv, line 2: a quote is opened here and never closed"):
        next(rows)
