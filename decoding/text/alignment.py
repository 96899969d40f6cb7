"""Word alignments, from a model's attention to the source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from decoding.common.arrays import Array

WORD_START = "\u2581"  # sentencepiece writes it for the space before a word


@runtime_checkable
class Pieces(Protocol):
    """A tokenizer with the pieces of texts, None for special tokens."""

    def source_pieces(self, text: str) -> list[str | None]: ...
    def target_pieces(self, ids: Sequence[int]) -> list[str | None]: ...


def alignment(
    tokenizer: Pieces, text: str, ids: Sequence[int], attention: Array
) -> list[tuple[int, int]]:
    """Pairs (i, j), ascending: word j of the translation is aligned to word i of the source.

    Words are separated by spaces and counted from 0. text: the source; ids: [G], the generated
    tokens; attention: an array or tensor, [G, S] or larger, of each of them to each source token. A
    translated word is aligned to the token to which its own tokens attend most, as a share of all
    attention to the token: every word attends to a full stop, which means nothing.
    """
    source = np.array(words_of(tokenizer.source_pieces(text)), np.int64)
    target = np.array(words_of(tokenizer.target_pieces(ids)), np.int64)
    found = attention.astype(np.float64)[: len(target), : len(source)]
    shares = found / np.maximum(found.sum(0), np.finfo(found.dtype).tiny)
    shares[:, source < 0] = -1  # special tokens are no words
    if (source < 0).all():
        return []
    words = range(target.max(initial=-1) + 1)
    return sorted((int(source[shares[target == word].sum(0).argmax()]), word) for word in words)


def words_of(pieces: Iterable[str | None]) -> list[int]:
    """The index of the word that each piece belongs to; -1 for none."""
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
    """The pairs in the Pharaoh format, "0-0 1-2"."""
    return " ".join(f"{i}-{j}" for i, j in pairs)
