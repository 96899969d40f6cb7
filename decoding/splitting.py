"""Cuts a text that is too long for a model, where a reader would pause."""

from __future__ import annotations

import re
from collections.abc import Callable

# Where to cut, best first: behind sentences, behind clauses, between words. A match belongs to what
# precedes it. Writing without spaces has its own marks.
BREAKS = (
    re.compile(r"[.!?…]+[\"'»«“”’‘)\]]*\s+|[。！？]+[」』）]*"),
    re.compile(r"[,;:–—]\s+|[，、；：]"),
    re.compile(r"\s+"),
)


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts of `text` that fit, as few as neighbours allow; joined they are `text` again.

    A part is cut behind a sentence if it can, else behind a clause, else between words, else
    inside a word. A single character is not cut, whether it fits or not.
    """
    if fits(text) or len(text) < 2:
        return [text]
    parts: list[str] = []
    for piece in _pieces(text):
        if parts and fits(parts[-1] + piece):
            parts[-1] += piece
        else:
            parts += split_text(piece, fits)
    return parts


def _pieces(text: str) -> list[str]:
    """At least two pieces of a text of at least two characters, cut at the best kind of break."""
    for kind in BREAKS:
        ends = [match.end() for match in kind.finditer(text)]
        starts = [0, *(end for end in ends if end < len(text))]
        if len(starts) > 1:
            return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
    return [text[: len(text) // 2], text[len(text) // 2 :]]
