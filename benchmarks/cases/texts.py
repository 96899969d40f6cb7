"""Parallel text to translate: German sentences with their English references."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE, TARGET = "de", "en"  # as the demo model translates


@dataclass(frozen=True)
class Text:
    """Sources and references, line by line. name: of its folder and files."""

    name: str
    sources: list[str]
    references: list[str]


def add_arguments(parser: argparse.ArgumentParser, lines: int) -> None:
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        required=True,
        metavar="PREFIX",
        help=f"of files PREFIX.{SOURCE}.gz and PREFIX.{TARGET}.gz, whose lines belong together",
    )
    parser.add_argument("--lines", type=int, default=lines, help="at most, of all texts together")


def read(prefixes: Sequence[Path], lines: int) -> list[Text]:
    """The first `lines` lines of all texts in turn, each source once, wherever it occurs first."""
    texts = []
    seen: set[str] = set()
    for prefix in prefixes:
        text = Text(f"{prefix.parent.name}/{prefix.name}", [], [])
        pairs = zip(read_lines(prefix, SOURCE), read_lines(prefix, TARGET), strict=True)
        for source, reference in pairs:
            if source not in seen and len(seen) < lines:
                seen.add(source)
                text.sources.append(source)
                text.references.append(reference)
        texts.append(text)
    return texts


def joined(texts: Sequence[Text]) -> Text:
    return Text(
        "all",
        [line for text in texts for line in text.sources],
        [line for text in texts for line in text.references],
    )


def read_lines(prefix: Path, language: str) -> list[str]:
    path = prefix.with_name(f"{prefix.name}.{language}.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]
