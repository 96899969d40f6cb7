"""Writes the rows of a block with their answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.common.signs import SIGNS, SPACES, replaced
from decoding.corpus.formats import parquet
from decoding.corpus.formats.compressed import writing
from decoding.corpus.formats.layout import FileType, arrow
from decoding.corpus.formats.rows import Row

Answer = dict[str, Any]


@dataclass(frozen=True)
class Output:
    """How rows are written.

    columns: of a table, carried through; None for JSON lines. answers: the kinds of the answers'
    columns. cells: those that text, TSV and CSV have. header: the files begin with names. signs:
    newlines in an answer are written as signs, not as spaces. apart: each input has an output of
    its own.
    """

    type: FileType
    columns: tuple[str, ...] | None
    answers: Mapping[str, str]
    cells: tuple[str, ...]
    header: bool
    signs: bool = False
    apart: bool = False


def write(
    path: str,
    output: Output,
    rows: Sequence[Row],
    answers: Sequence[Answer | None],
    records: list[bytes] | bytes,
    is_first: bool,
) -> None:
    """A synced file of all rows; None is the answer of one that has failed. records: what the rows
    were read from. is_first: nothing comes before it in its output."""
    if output.type.kind == "parquet":
        if isinstance(records, bytes):
            columns = parquet.table(records)
        else:
            names = output.columns or ()
            texts = [[row.fields.get(name) for row in rows] for name in names]
            columns = arrow().table(texts, schema=arrow().schema([(n, "string") for n in names]))
        parquet.write(path, columns, dict(output.answers), answers)
        return
    with writing(path, output.type.compression) as file:
        if output.header and is_first:
            file.write(header(output).encode())
        for row, answer in zip(rows, answers, strict=True):
            file.write(line(output, row, answer).encode())


def header(output: Output) -> str:
    return joined(output.type.kind, [*(output.columns or ()), *output.cells])


def line(output: Output, row: Row, answer: Answer | None) -> str:
    kind = output.type.kind
    if kind == "json":
        given = {next(iter(output.answers)): None} if answer is None else answer
        # What a failed row has of its own under the name of an answer is none.
        carried = {k: value for k, value in row.fields.items() if k not in output.answers}
        # What JSON has no type for, such as the dates of Parquet, is written as text.
        return json.dumps({**carried, **given}, ensure_ascii=False, default=str) + "\n"
    signs = {} if kind == "csv" else SIGNS if output.signs else SPACES
    cells = [replaced(shown((answer or {}).get(name)), signs) for name in output.cells]
    if kind == "lines":
        return " ||| ".join(cells if answer else [""]) + "\n"
    values = [row.fields.get(name) for name in output.columns or ()]
    texts = ["" if value is None else str(value) for value in values]
    return joined(kind, [*texts, *cells])


def joined(kind: str, cells: Sequence[str]) -> str:
    """A row of TSV or CSV."""
    if kind == "tsv":
        return "\t".join(replaced(cell, SPACES) for cell in cells) + "\n"
    text = io.StringIO()
    # Python 3.10 and early releases of 3.11 quote a lone \r only if the end of a line has one.
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"


def shown(value: Any) -> str:
    """A part of an answer: text, a number, or pairs of words."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return " ".join("-".join(map(str, pair)) for pair in value)
    return str(value)
