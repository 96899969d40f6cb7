"""Reads the lines of text that engines are compared on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from decoding.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Text:
    """Sources or prompts with their ids, [lines][tokens], and their references, if there are any.
    numbers: line numbers in the file, from 1. left_out: number of lines that were too short or too
    long."""

    name: str
    sources: list[str]
    ids: list[list[int]]
    references: list[str]
    numbers: list[int]
    left_out: int = 0

    def batch(self, size: int) -> list[int]:
        """Indices of the first `size` lines, repeated where there are fewer."""
        return [i % len(self.sources) for i in range(size)]


def read_text(
    path: Path, references: Path | None, tokenizer: Tokenizer, fits: range, lines: int
) -> Text:
    """Reads the first `lines` lines that are not blank and whose number of tokens is in `fits`.

    Raises ValueError where none is left, for a file that is not UTF-8, and for a number of
    references that differs from that of the lines.
    """
    sources = read_lines(path)
    targets = read_lines(references) if references else [""] * len(sources)
    if len(targets) != len(sources):
        raise ValueError(f"{path} has {len(sources)} lines, {references} {len(targets)}")
    found = Text(path.name, [], [], [], [])
    left_out = 0
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
        if len(found.sources) == lines:
            break
        ids = tokenizer.encode(source) if source.strip() else []
        left_out += bool(ids) and len(ids) not in fits
        if len(ids) in fits:
            found.sources.append(source)
            found.ids.append(ids)
            found.numbers.append(number)
            found.references.extend([target] if references else [])
    if not found.sources:
        raise ValueError(f"{path} has no line of {fits[0]} to {fits[-1]} tokens")
    return replace(found, left_out=left_out)


def read_lines(path: Path) -> list[str]:
    """Lines that end with "\\n" or "\\r\\n", as the commands read them: splitlines() would cut at
    separators within a sentence, too."""
    try:
        text = path.read_bytes().decode("utf-8")
        lines = text.removesuffix("\n").split("\n") if text else []
        return [line.removesuffix("\r") for line in lines]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start + 1}") from None


def batches(text: Text, size: int) -> Iterator[list[int]]:
    """Indices of all lines, `size` at a time, lines of about equal lengths together."""
    order = sorted(range(len(text.ids)), key=lambda i: -len(text.ids[i]))
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]
