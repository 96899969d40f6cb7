"""Reads the rows of a block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decoding.corpus.formats import parquet
from decoding.corpus.formats.blocks import cells_of
from decoding.corpus.formats.layout import Layout


@dataclass(frozen=True)
class Row:
    """fields: its columns, in their order. reason: why it cannot be read, and None where it can."""

    fields: dict[str, Any]
    reason: str | None = None


def rows_of(records: list[bytes] | bytes, layout: Layout) -> list[Row]:
    """The rows of a block, those that cannot be read with the reason."""
    if isinstance(records, bytes):
        return table_rows(records)
    return [row_of(record, layout) for record in records]


def table_rows(records: bytes) -> list[Row]:
    """Of Parquet, where a text may hold what is no UTF-8, a date what Python has none for, or a
    time a zone that it does not know."""
    table = parquet.table(records)
    try:
        return [Row(fields) for fields in table.to_pylist()]
    except MemoryError:
        raise
    except Exception:  # of any kind: a zone that is unknown is a KeyError
        return [table_row(table.slice(number, 1)) for number in range(len(table))]


def table_row(table: Any) -> Row:
    try:
        return Row(table.to_pylist()[0])
    except MemoryError:
        raise
    except Exception as error:
        return Row({}, f"a value cannot be read: {type(error).__name__}: {error}")


def row_of(record: bytes, layout: Layout) -> Row:
    try:
        return Row(fields_of(decoded(record, layout), layout))
    except (ValueError, RecursionError) as error:
        return Row({}, str(error))


def decoded(record: bytes, layout: Layout) -> str:
    """Raises ValueError for bytes that are not in the encoding."""
    try:
        how = "replace" if layout.errors == "replace" else "strict"
        return record.decode(layout.encoding, how)
    except UnicodeDecodeError as error:
        if layout.errors == "skip":
            return ""
        raise ValueError(
            f"not {layout.encoding.upper()}: byte {error.start + 1} is 0x{record[error.start]:02x}"
        ) from None


def fields_of(text: str, layout: Layout) -> dict[str, Any]:
    if layout.kind == "lines":
        return {layout.key: text}
    if layout.kind == "json":
        return json_fields(text, layout.key)
    return table_fields(text, layout.kind, layout.columns or ())


def json_fields(text: str, key: str) -> dict[str, Any]:
    """Of an object; another value is that of `key`, and an empty line an empty text. Raises
    ValueError for what is no JSON or what no UTF-8 file could hold."""
    try:
        value = json.loads(text) if text.strip() else ""
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a UTF-16 surrogate pair") from None
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    return value if isinstance(value, dict) else {key: value}


def table_fields(text: str, kind: str, columns: Sequence[str]) -> dict[str, Any]:
    cells = cells_of(text, kind) if text else [""] * len(columns)
    if len(cells) != len(columns):
        raise ValueError(f"the row has {len(cells)} columns, and the first one has {len(columns)}")
    return dict(zip(columns, cells, strict=True))
