"""Cuts a file into blocks of rows, in one pass that holds one block."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
from collections.abc import Iterator
from itertools import islice
from typing import IO, NamedTuple

from decoding.corpus.formats import parquet
from decoding.corpus.formats.compressed import reading
from decoding.corpus.formats.layout import FileType, Layout

LONGEST = 1 << 26  # bytes of a CSV row: beyond them a quote was never closed


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
    rows = csv_rows(text, path) if kind == "csv" else iter(text)
    mark = codecs.BOM_UTF8 if codecs.lookup(encoding).name == "utf-8" else b""
    for row in rows:
        yield row.removeprefix(mark).removesuffix(b"\n").removesuffix(b"\r")
        mark = b""


def csv_rows(text: IO[bytes], path: str) -> Iterator[bytes]:
    """A row ends with the first line behind which the number of quotes is even (RFC 4180)."""
    row, first = b"", 0
    for number, line in enumerate(text, 1):
        first = first if row else number
        row += line
        if row.count(b'"') % 2 == 0:
            yield row
            row = b""
        elif len(row) > LONGEST:
            raise ValueError(f"{path}, line {first}: a quote is opened here and never closed")
    if row:
        raise ValueError(f"{path}, line {first}: a quote is opened here and never closed")


def columns_of(path: str, type_: FileType, encoding: str, header: bool) -> tuple[str, ...]:
    """The names of a table's columns: its header's, or the numbers of the first row's cells."""
    if type_.kind == "parquet":
        return parquet.columns(path)
    with reading(path, type_.compression) as (text, _):
        first = next(cut(text, type_.kind, path, encoding), None)
    if first is None:
        return ()
    try:
        cells = cells_of(first.decode(encoding), type_.kind)
    except ValueError as error:
        raise ValueError(f"{path}, line 1: {error}") from None
    if not header:
        return tuple(str(number) for number in range(1, len(cells) + 1))
    twice = sorted({name for name in cells if cells.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has two columns named {twice[0]!r}")
    return tuple(cells)


def cells_of(text: str, kind: str) -> list[str]:
    """Of a row of TSV, where quotes mean nothing, or CSV. Raises ValueError for wrong quotes."""
    if kind == "tsv":
        return text.split("\t")
    try:
        return next(csv.reader(io.StringIO(text, newline=""), strict=True), [""])
    except csv.Error as error:
        raise ValueError(f"no row of CSV: {error}") from None
