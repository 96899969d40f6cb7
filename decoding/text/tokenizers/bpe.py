"""Byte-pair encoding of words (Sennrich et al. 2016), as the package subword-nmt writes it: a token
that its word goes on behind ends in "@@"."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from decoding.models.files import LINES, ModelFileError, read_text, short

GOES_ON = "@@"
END = "</w>"  # ends the last symbol of a word in the list of merges


class WordBPE:
    """merges: pairs of symbols, the most frequent first."""

    def __init__(self, merges: Iterable[tuple[str, str]]) -> None:
        self._ranks: dict[tuple[str, str], int] = {}
        for rank, pair in enumerate(merges):
            self._ranks.setdefault(pair, rank)
        self._known: dict[str, list[str]] = {}  # text repeats its words

    def cut(self, word: str) -> list[str]:
        """The tokens of a word that is not empty."""
        if word not in self._known:
            symbols = self._merged([*word[:-1], word[-1] + END])
            tokens = [symbol + GOES_ON for symbol in symbols[:-1]]
            self._known[word] = [*tokens, symbols[-1].removesuffix(END)]
        return self._known[word]

    def _merged(self, symbols: list[str]) -> list[str]:
        """Merges all occurrences of the highest-ranked pair, until no pair is in the list."""
        while len(symbols) > 1:
            pairs = zip(symbols, symbols[1:], strict=False)
            best = min(pairs, key=lambda pair: self._ranks.get(pair, math.inf))
            if best not in self._ranks:
                break
            merged: list[str] = []
            for symbol in symbols:
                if merged and (merged[-1], symbol) == best:
                    merged[-1] += symbol
                else:
                    merged.append(symbol)
            symbols = merged
        return symbols


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Lines of two symbols, and fastBPE's count after them, below an optional `#version` line.

    Raises ValueError that names the line that is something else.
    """
    merges = []
    for number, ended in enumerate(read_text(path, LINES).split("\n"), 1):
        line = ended.removesuffix("\r")
        parts = line.split(" ")
        if (number == 1 and line.startswith("#version")) or not line:
            continue
        if len(parts) not in (2, 3):
            raise ModelFileError(
                f"{path}, line {number} must hold a pair of symbols, got {short(line)}"
            )
        merges.append((parts[0], parts[1]))
    return merges
