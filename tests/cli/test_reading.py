"""Lines of files and pipes, whatever pieces they arrive in."""

from __future__ import annotations

import argparse
import io
import os
from collections import deque
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.cli import line_reader
from decoding.cli.line_reader import LineReader
from decoding.cli.reading import Input
from decoding.cli.records import Record, batches, kept

PIECES = st.lists(st.text("ab\n\r", max_size=6).map(str.encode), max_size=12)


def expected(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return [line.removesuffix(b"\r") for line in (lines if lines[-1] else lines[:-1])]


@given(PIECES)
def test_lines_of_a_pipe(pieces: list[bytes]) -> None:
    """A line is ready when its end has been written, or when the writer has closed the pipe."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as pipe:
        reader, found, written = LineReader(pipe, "pipe"), list[bytes](), b""
        lines = iter(reader)
        for piece in pieces:
            os.write(write, piece)
            written += piece
            while reader.ready():
                found += next(lines)
            assert found == expected(written[: written.rfind(b"\n") + 1])
        os.close(write)
        assert reader.ready()
        found += chain.from_iterable(lines)
        assert found == expected(written) and reader.ready()


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
@given(st.text("ab\n\r", max_size=30).map(str.encode))
def test_lines_of_a_file_in_memory(chunk: int, content: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_reader, "CHUNK", chunk)
        lists = list(LineReader(io.BytesIO(content), "file"))
        assert all(lists) and list(chain.from_iterable(lists)) == expected(content)


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 9), st.data())
def test_batches(sizes: list[int], most: int, data: st.DataObject) -> None:
    """In order; each has `most` or a little more, unless nothing else was ready."""
    answers = [data.draw(st.booleans()) for _ in sizes]
    waits = iter(answers)
    found = list(batches(sizes, lambda size: size, most, lambda: next(waits)))
    assert [size for batch in found for size in batch] == sizes
    for batch in found:
        assert batch and sum(batch[:-1]) < most
    if all(answers):
        assert all(sum(batch) >= most for batch in found[:-1])


def test_what_is_read_is_kept_until_it_is_answered() -> None:
    pending: deque[Record] = deque()
    lists = kept(
        ([Record("here", text, [text], {}) for text in read] for read in ("a", "bc")), pending
    )
    assert next(lists) == list(pending)
    pending.popleft()
    assert next(lists) == list(pending) and [record.text for record in pending] == ["b", "c"]


@pytest.mark.parametrize("bad", [1, 2, 4])
def test_an_error_comes_behind_the_lines_before_it(bad: int, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"".join(b"\xff\n" if i == bad else b"line\n" for i in range(1, 5)))
    options = argparse.Namespace(encoding="utf-8", errors="strict", input_format="lines")
    found = list[Record]()
    with pytest.raises(ValueError, match=f"line {bad} is not UTF-8"):
        for records in Input(options, [str(path)], "text"):
            assert records
            found += records
    assert [record.where for record in found] == [f"{path}, line {i}" for i in range(1, bad)]
