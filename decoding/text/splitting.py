"""Splits a text that is too long for a model, at the ends of sentences or clauses."""

from __future__ import annotations

import re
from collections.abc import Callable

# A match ends where a cut may be. A full stop is taken for an abbreviation's behind a single letter
# and before lower case. Writing without spaces has its own marks.
SENTENCES = re.compile(r"(?<!\b\w)[.!?…]+[\"'»«“”’‘)\]]*\s+(?![\sa-zß-ÿа-я])|[。！？]+[」』）]*")
CLAUSES = re.compile(r"[,;:–—]\s+|[，、；：]")
WORDS = re.compile(r"\s+")


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts of `text` that fit; joined they are `text` again.

    A text that does not fit is cut behind each of its sentences, since models translate sentences
    best. A sentence that does not fit is cut behind clauses, else between words, else inside a
    word, into as few parts as neighbours allow. A single character is not cut, if it fits or not.
    """
    if fits(text):
        return [text]
    return [part for sentence in _pieces(SENTENCES, text) for part in _cut(sentence, fits)]


def _cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    if fits(text) or len(text) < 2:
        return [text]
    middle = len(text) // 2
    halves = [text[:middle], text[middle:]]
    kinds = (_pieces(CLAUSES, text), _pieces(WORDS, text), halves)
    parts: list[str] = []
    for piece in next(pieces for pieces in kinds if len(pieces) > 1):
        if parts and fits(parts[-1] + piece):
            parts[-1] += piece
        else:
            parts += _cut(piece, fits)
    return parts


def _pieces(ends: re.Pattern[str], text: str) -> list[str]:
    """`text` cut behind every match."""
    cuts = [match.end() for match in ends.finditer(text) if match.end() < len(text)]
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
