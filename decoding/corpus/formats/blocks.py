"""Cuts a file into blocks of rows, in one pass that holds one block."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO, NamedTuple

from decoding.corpus.formats import parquet
from decoding.corpus.formats.compressed import reading
from decoding.corpus.formats.layout import FileType, Layout

LONGEST = 1 << 26  # bytes of a CSV row: beyond them a quote was never closed
csv.field_size_limit(max(LONGEST, csv.field_size_limit()))  # of a cell: 131,072 without it
# A quoted cell, with the quote that closes it or b"". Only at the start of a cell a quote opens it;
# elsewhere it is text. A lone \r ends a row for csv.reader, so that a cell starts behind it.
QUOTED = re.compile(rb'(?:\A|[,\r])"[^"]*(?:""[^"]*)*("?)')


class Block(NamedTuple):
    """Successive rows of a file. records: of text the bytes of each row, of Parquet a table as a
    stream of Arrow's. digest: of what was read. position: behind it, in bytes of the file."""

    records: list[bytes] | bytes
    rows: int
    digest: str
    position: int


def blocks(path: str, type_: FileType, layout: Layout, rows: int, done: int) -> Iterator[Block]:
    """Blocks of so many rows; a file without rows has one, which is empty.

    done: so many blocks at the beginning need no records, and Parquet passes over them.
    """
    if type_.kind == "parquet":
        yield from (Block(*each) for each in parquet.blocks(path, rows, done))
        return
    with reading(path, type_.compression) as (text, file):
        records = cut(text, type_.kind, path, layout.encoding)
        if layout.header:
            next(records, None)
        is_first = True
        while (chunk := list(islice(records, rows))) or is_first:
            is_first = False
            digest = hashlib.sha256(b"\n".join(chunk)).hexdigest()
            yield Block(chunk, len(chunk), digest, file.tell())


def cut(text: IO[bytes], kind: str, path: str, encoding: str) -> Iterator[bytes]:
    """The rows of a text without the ends of their lines, and without a byte order mark."""
    mark = codecs.BOM_UTF8 if codecs.lookup(encoding).name.startswith("utf-8") else b""
    # The mark goes first: behind it, too, a quote is at the start of a cell.
    lines = chain((line.removeprefix(mark) for line in islice(text, 1)), text)
    for row in csv_rows(lines, path) if kind == "csv" else lines:
        yield row.removesuffix(b"\n").removesuffix(b"\r")


def csv_rows(lines: Iterable[bytes], path: str) -> Iterator[bytes]:
    """A row ends with the first line behind which no quoted cell is open, as csv.reader has it."""
    row, is_open, first = bytearray(), False, 0
    for number, line in enumerate(lines, 1):
        if not is_open and b'"' not in line:  # most lines of most files
            yield line
            continue
        first = first if is_open else number
        row += line
        is_open = b"" in QUOTED.findall(b'"' + line if is_open else line)
        if not is_open:
            yield bytes(row)
            row.clear()
        elif len(row) > LONGEST:
            break
    if is_open:
        raise ValueError(f"{path}, line {first}: a quote is opened here and never closed")


def columns_of(path: str, type_: FileType, encoding: str, header: bool) -> tuple[str, ...]:
    """The names of a table's columns: its header's, or the numbers of the first row's cells."""
    if type_.kind == "parquet":
        names = parquet.columns(path)
    else:
        names = first_row(path, type_, encoding)
        if not header:
            return tuple(str(number) for number in range(1, len(names) + 1))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has two columns named {twice[0]!r}")
    return names


def first_row(path: str, type_: FileType, encoding: str) -> tuple[str, ...]:
    """The cells of a table's first row."""
    with reading(path, type_.compression) as (text, _):
        first = next(cut(text, type_.kind, path, encoding), None)
    if first is None:
        return ()
    try:
        return tuple(cells_of(first.decode(encoding), type_.kind))
    except ValueError as error:
        raise ValueError(f"{path}, line 1: {error}") from None


def cells_of(text: str, kind: str) -> list[str]:
    """Of a row of TSV, where quotes mean nothing, or CSV. Raises ValueError for wrong quotes, and
    where the text is more than one row."""
    if kind == "tsv":
        return text.split("\t")
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[""]]
    except csv.Error as error:
        raise ValueError(f"no row of CSV: {error}") from None
    if len(rows) > 1:
        raise ValueError("no row of CSV: a cell with an end of a line, or a lone \\r, needs quotes")
    return rows[0]
