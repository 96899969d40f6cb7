"""Which source word a translated word stems from, as a model's attention tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

WORD_START = "\u2581"  # sentencepiece writes it for the space before a word


class Pieces(Protocol):
    """A tokenizer that tells the pieces of texts, None for special tokens."""

    def source_pieces(self, text: str) -> list[str | None]: ...
    def target_pieces(self, ids: Sequence[int]) -> list[str | None]: ...


def alignment(
    tokenizer: Pieces, text: str, ids: Sequence[int], attention: Tensor
) -> list[tuple[int, int]]:
    """Pairs (i, j), ascending: word j of the translation stems from word i of the source.

    Words are what spaces separate, counted from 0. text: the source; ids: [G], what was generated;
    attention: [G, S], of each of them to the source's tokens. A word's attention is that of its
    tokens together; each translated word gets the source word that it attends to most.
    """
    source = words_of(tokenizer.source_pieces(text))
    target = words_of(tokenizer.target_pieces(ids))
    weights = np.zeros((1 + max(target, default=-1), 1 + max(source, default=-1)))
    if weights.size == 0:
        return []
    found = attention.double().numpy()
    for t, word in enumerate(target):
        for s, origin in enumerate(source):
            if word >= 0 and origin >= 0:
                weights[word, origin] += found[t, s]
    return sorted((int(row.argmax()), word) for word, row in enumerate(weights) if row.any())


def words_of(pieces: Iterable[str | None]) -> list[int]:
    """The word that each piece belongs to; -1 for none."""
    words = []
    word, starts = -1, True
    for piece in pieces:
        if piece is None:
            words.append(-1)
            continue
        text = piece.lstrip(WORD_START)
        starts = starts or text != piece
        if not text:  # the space before a word whose pieces are to come
            words.append(-1)
            continue
        word += starts
        starts = False
        words.append(word)
    return words


def written(pairs: Iterable[tuple[int, int]]) -> str:
    """In the Pharaoh format, "0-0 1-2"."""
    return " ".join(f"{i}-{j}" for i, j in pairs)
