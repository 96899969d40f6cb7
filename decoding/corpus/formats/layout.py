"""What a file holds: its format, its compression and its columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

KINDS = ("lines", "json", "tsv", "csv", "parquet")
ENDINGS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".tsv": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
}
USUAL = {"lines": ".txt", "json": ".jsonl", "tsv": ".tsv", "csv": ".csv", "parquet": ".parquet"}
COMPRESSIONS = (".gz", ".zst")


@dataclass(frozen=True)
class FileType:
    """kind: of KINDS. compression: "" or of COMPRESSIONS."""

    kind: str
    compression: str

    @property
    def endings(self) -> str:
        return USUAL[self.kind] + self.compression


@dataclass(frozen=True)
class Layout:
    """How the rows of all inputs are read.

    columns: of a table; of plain lines the one that they are; None for JSON lines. header: whether
    a file begins with the names. key: the column of the text, where JSON lines that are no objects
    have their value. encoding, errors: of text, "strict", "replace" or "skip". signs: newlines of
    the text are signs.
    """

    kind: str
    columns: tuple[str, ...] | None
    header: bool
    key: str
    encoding: str = "utf-8"
    errors: str = "strict"
    signs: bool = False


def file_type(name: str, kind: str | None, usual: str = "lines") -> FileType:
    """Of a file's name. kind: what it is whatever its name; usual: where the name does not say."""
    stem, compression = name, Path(name).suffix.lower()
    if compression in COMPRESSIONS:
        stem = name[: -len(compression)]
    else:
        compression = ""
    found = kind or ENDINGS.get(Path(stem).suffix.lower(), usual)
    if found == "parquet" and compression:
        raise ValueError(f"{name}: Parquet compresses its own columns: leave {compression} out")
    return FileType(found, compression)


def renamed(name: str, before: FileType, after: FileType) -> str:
    """The name of an output that is made of the input `name`: with another ending where the format
    is another."""
    if before == after:
        return name
    stem = name[: -len(before.compression)] if before.compression else name
    if ENDINGS.get(Path(stem).suffix.lower(), "lines") == before.kind:
        stem = stem[: len(stem) - len(Path(stem).suffix)]
    return stem + after.endings


def arrow(what: str = "") -> ModuleType | Any:
    """pyarrow, or a module of it. Raises ValueError, with what installs it, where it is missing."""
    from importlib import import_module

    try:
        return import_module(f"pyarrow{what}")
    except ModuleNotFoundError:
        raise ValueError(
            "Parquet and .zst need pyarrow: pip install pyarrow (or .[corpus] in a checkout)"
        ) from None
