"""What a job reads and writes: decided, and checked, before anything is computed."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import decoding
from decoding.common.encodings import ERRORS, line_encoding
from decoding.corpus.formats.blocks import columns_of
from decoding.corpus.formats.layout import (
    KINDS,
    FileType,
    Layout,
    arrow,
    file_type,
    renamed,
)
from decoding.corpus.formats.parquet import schema
from decoding.corpus.formats.writing import Output
from decoding.corpus.row_task import RowTask
from decoding.corpus.shards import Source, check_name, expanded

IN_HAND = 2  # shards of a worker: while one ends and is written, the next keeps the device busy
TABLES = ("lines", "tsv", "csv", "parquet")  # whose columns have names before a row is read


@dataclass(frozen=True)
class Plan:
    """outputs: one, or one for each source. folder: the job's. rows: of a shard; in_hand: shards
    of a worker, which together have shard_lines rows at most."""

    sources: tuple[Source, ...]
    layout: Layout
    output: Output
    outputs: tuple[Path, ...]
    folder: Path
    shard_lines: int

    @property
    def in_hand(self) -> int:
        return min(IN_HAND, self.shard_lines)

    @property
    def rows(self) -> int:
        return self.shard_lines // self.in_hand

    def manifest(self, task: RowTask) -> dict[str, Any]:
        """What the job is: of another one, this or what it reads differs."""
        return {
            "decoding": decoding.__version__,
            "task": task.identity(),
            "inputs": [f"{Path(each.path).name}, {each.size} bytes" for each in self.sources],
            "input": asdict(self.layout) | {"columns": list(self.layout.columns or ())},
            "output": {
                "format": self.output.type.kind + self.output.type.compression,
                "columns": [*(self.output.columns or ()), *self.output.answers],
                "files": [path.name for path in self.outputs],
            },
            "shard_lines": self.shard_lines,
        }


def plan(
    task: RowTask,
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    input_format: str | None,
    output_format: str | None,
    encoding: str,
    errors: str,
    shard_lines: int,
) -> Plan:
    """Raises ValueError and OSError for files, formats and columns that do not go together."""
    check_choice("input_format", input_format, (None, *KINDS))
    check_choice("output_format", output_format, (None, *KINDS))
    check_choice("errors", errors, ERRORS)
    encoding = line_encoding(encoding)
    if shard_lines < 1:
        raise ValueError(f"shard_lines must be at least 1, got {shard_lines}")
    names = expanded(inputs)
    check_name(os.fspath(output))
    types = [file_type(name, input_format) for name in names]
    sources = tuple(
        Source(name, type_, os.path.getsize(name)) for name, type_ in zip(names, types, strict=True)
    )
    layout = layout_of(task, sources, encoding, errors)
    target, apart = os.fspath(output), is_folder(os.fspath(output))
    kind = layout.kind if apart else file_type(target, None, layout.kind).kind
    kind = output_format or default_kind(task, kind)
    check_kind(layout.kind, kind, task)
    paths = output_paths(target, apart, sources, kind)
    check_paths(paths, sources)
    type_ = file_type(paths[0].name, kind)
    if apart and len({each.type.compression for each in sources}) > 1:
        raise ValueError(f"inputs of one job that go to {target} have one compression")
    header = kind == "csv" and layout.kind != "csv" or kind == "tsv" and layout.kind != "tsv"
    return Plan(
        sources,
        layout,
        Output(
            type=type_,
            columns=None if kind == "json" else layout.columns,
            answers=task.answers,
            cells=task.cells,
            header=(layout.header or header) and kind in ("csv", "tsv"),
            signs=task.signs,
            apart=apart,
        ),
        paths,
        Path(target.rstrip("/") + ".job"),
        shard_lines,
    )


def check_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    if value not in choices:
        listing = ", ".join(filter(None, choices))
        raise ValueError(f"{name} must be one of {listing}, got {value!r}")


def is_folder(output: str) -> bool:
    return output.endswith("/") or os.path.isdir(output)


def default_kind(task: RowTask, kind: str) -> str:
    """Vectors are nothing that plain text holds."""
    vectors = "vector" in task.answers.values()
    return "json" if vectors and kind not in ("json", "parquet") else kind


def layout_of(task: RowTask, sources: Sequence[Source], encoding: str, errors: str) -> Layout:
    kinds = sorted({source.type.kind for source in sources})
    if len(kinds) > 1:
        raise ValueError(
            f"the inputs of one job have one format, not {' and '.join(kinds)}: run a job for each"
        )
    [kind], key = kinds, task.key
    if kind == "lines":
        return Layout(kind, (key,), False, key, encoding, errors, task.signs)
    if kind == "json":
        return Layout(kind, None, False, key, encoding, errors)
    header = kind == "parquet" or not numbered(task, kind)
    found = {
        source.path: columns_of(source.path, source.type, encoding, header) for source in sources
    }
    first = sources[0].path
    for path, columns in found.items():
        if columns != found[first]:
            raise ValueError(
                f"{path} has the columns {listed(columns)}, and {first} has "
                f"{listed(found[first])}: the inputs of one job have the same columns"
            )
    if kind == "parquet" and any(not schema(s.path).equals(schema(first)) for s in sources[1:]):
        raise ValueError(f"columns of the inputs have other types than those of {first}")
    check_columns(task, kind, found[first], first, header)
    names = next(iter(texts_of(task)), ())
    key = next((name for name in names if name in found[first]), key)
    signs = task.signs and kind == "tsv"
    return Layout(kind, found[first], header and kind != "parquet", key, encoding, errors, signs)


def numbered(task: RowTask, kind: str) -> bool:
    """Whether columns are called by numbers: then there is no header."""
    column = getattr(task, "column", None)
    return column.isdecimal() if column is not None else kind == "tsv"


def check_columns(
    task: RowTask, kind: str, columns: tuple[str, ...], path: str, header: bool
) -> None:
    for names in texts_of(task) if columns else []:
        if not any(name in columns for name in names):
            raise ValueError(f"{path} has no column {names[0]!r}: it has {listed(columns)}")
    both = [name for name in task.answers if name in columns]
    if both and header:
        raise ValueError(
            f"{path} has a column {both[0]!r} already, which the answers would have: rename it"
        )


def texts_of(task: RowTask) -> list[tuple[str, ...]]:
    """Of each text that a row must have the columns where it may be, as far as the task says so."""
    column = getattr(task, "column", None)
    texts: list[tuple[str, ...]] = getattr(task, "texts", [] if column is None else [(column,)])
    return texts


def listed(names: Sequence[str]) -> str:
    """Names for a message; a file that is no table may have a long line of them."""
    return textwrap.shorten(", ".join(names), 500, placeholder=" ...")


def check_kind(before: str, after: str, task: RowTask) -> None:
    if before not in TABLES and after not in ("json", "lines"):
        raise ValueError(
            f"JSON lines have no fixed columns, so they cannot become {after}: write json or lines"
        )
    kinds = task.answers.values()
    if "any" in kinds and after != "json":
        raise ValueError("several answers of a row need JSON lines: add --json, or leave them out")
    if "vector" in kinds and after not in ("json", "parquet"):
        raise ValueError(f"vectors are written as json or parquet, not as {after}")
    if "parquet" in (before, after):
        arrow()


def output_paths(
    target: str, apart: bool, sources: Sequence[Source], kind: str
) -> tuple[Path, ...]:
    if not apart:
        if file_type(target, None, kind).kind != kind:
            raise ValueError(f"{target} would hold {kind}: name it otherwise")
        return (Path(target),)
    paths = []
    for source in sources:
        compression = "" if kind == "parquet" else source.type.compression
        after = FileType(kind, compression)
        paths.append(Path(target) / renamed(Path(source.path).name, source.type, after))
    return tuple(paths)


def check_paths(paths: Sequence[Path], sources: Sequence[Source]) -> None:
    twice = [path for path in paths if paths.count(path) > 1] if len(paths) > 1 else []
    if twice:
        raise ValueError(f"two inputs would become {twice[0]}: their names must differ")
    for path in paths:
        for source in sources:
            if path.exists() and os.path.samefile(path, source.path):
                raise ValueError(f"{path} is an input too: write to another place")
