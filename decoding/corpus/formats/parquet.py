"""Parquet: row groups in, tables as streams of Arrow's between processes, row groups out."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from decoding.corpus.formats.compressed import sync
from decoding.corpus.formats.layout import arrow

FOOTER = 8  # bytes at the end: the length of the metadata, and a mark


def columns(path: str) -> tuple[str, ...]:
    with opened(path) as file:
        return tuple(file.schema_arrow.names)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """pyarrow's ParquetFile, which reads what it is asked for, not the whole file. Raises
    ValueError, with the name, for what cannot be read."""
    try:
        with arrow(".parquet").ParquetFile(path, pre_buffer=False) as file:
            yield file
    except (OSError, UnicodeDecodeError, arrow().ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        said = " ".join(str(error).split())  # several lines, where the file is damaged
        raise ValueError(f"{path} is no Parquet file: {said}") from None


def schema(path: str) -> Any:
    """Without metadata of other programs: it would describe other columns than are written."""
    with opened(path) as file:
        return file.schema_arrow.remove_metadata()


def blocks(path: str, rows: int, done: int) -> Iterator[tuple[bytes, int, str, int]]:
    """Block's fields, of so many rows each; those of the first `done` may have no records."""
    size = os.path.getsize(path)
    with opened(path) as file:
        total, mark = file.metadata.num_rows, footer(path)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        if sum(groups) != total:
            raise ValueError(f"{path} is damaged: it counts {total} rows, its groups {sum(groups)}")
        begin, tables = 0, tables_of(file, rows, done)
        while begin < total or begin == 0:
            end = min(begin + rows, total)
            # What the footer says of places and statistics changes where the rows do.
            digest = hashlib.sha256(mark + f" {begin} {end}".encode()).hexdigest()
            records = b"" if begin // rows < done else stream(next(tables))
            yield records, end - begin, digest, size * end // max(1, total)
            begin = max(end, 1)


def footer(path: str) -> bytes:
    """The checksum of a file's metadata."""
    with open(path, "rb") as file:
        file.seek(-FOOTER, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-FOOTER - length, os.SEEK_END)
        return hashlib.sha256(file.read(length)).digest()


def tables_of(file: Any, rows: int, done: int) -> Iterator[Any]:
    """Tables of so many rows, from row `done * rows` on; a file without rows has one."""
    pa, names = arrow(), file.schema_arrow.remove_metadata()
    skip, first = done * rows, 0
    while first < file.num_row_groups and skip >= file.metadata.row_group(first).num_rows:
        skip -= file.metadata.row_group(first).num_rows
        first += 1
    kept = pa.Table.from_batches([], names)
    for batch in file.iter_batches(rows, row_groups=range(first, file.num_row_groups)):
        passed = min(skip, len(batch))
        skip -= passed
        more = pa.Table.from_batches([batch.slice(passed)]).cast(names)
        kept = pa.concat_tables([kept, more])
        while len(kept) >= rows:
            yield kept.slice(0, rows)
            kept = kept.slice(rows)
    if len(kept) or file.metadata.num_rows == 0:
        yield kept


def stream(table: Any) -> bytes:
    pa = arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def table(records: bytes) -> Any:
    return arrow().ipc.open_stream(records).read_all()


def write(
    path: str,
    columns: Any,
    kinds: dict[str, str],
    answers: Sequence[dict[str, Any] | None],
) -> None:
    """A file of one row group. columns: a table of what is carried through. kinds: of the columns
    of the answers, of KINDS."""
    pa = arrow()
    for name, kind in kinds.items():
        values = [None if answer is None else answer.get(name) for answer in answers]
        columns = columns.append_column(name, pa.array(values, type_of(kind)))
    arrow(".parquet").write_table(columns, path, row_group_size=max(1, len(answers)))
    sync(path)


def type_of(kind: str) -> Any:
    """Of a column of answers."""
    pa = arrow()
    kinds = {
        "text": pa.string(),
        "number": pa.float64(),
        "count": pa.int64(),
        "vector": pa.list_(pa.float32()),
        "pairs": pa.list_(pa.list_(pa.int64())),
    }
    return kinds[kind]


def joined(paths: Sequence[str], path: str) -> int:
    """Writes one file of the row groups of several, and returns its rows."""
    count = 0
    with opened(paths[0]) as first:
        names = first.schema_arrow
    with arrow(".parquet").ParquetWriter(path, names) as writer:
        for each in paths:
            with opened(each) as part:
                table = part.read()
            writer.write_table(table)
            count += len(table)
    sync(path)
    return count
