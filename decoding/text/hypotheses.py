"""Translations of a line: those of its parts, and joined."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from decoding.common.arrays import Array
from decoding.generation.config import GenerationConfig
from decoding.text.parts import Window, language_code
from decoding.text.tokenizers import Tokenizer


class Hypothesis(NamedTuple):
    """A translation of a line.

    score: S / G^a of beam search; of other searches S, the sum of the log-probabilities that the
    model gives to the tokens, NaN where it is not asked for. alignment: pairs (i, j), ascending:
    word j of it is aligned to word i of the line, from 0; a language code at the line's beginning
    is no word. Only where it is asked for. tokens: G, generated ones, EOS included.
    """

    text: str
    score: float
    alignment: tuple[tuple[int, int], ...] = ()
    tokens: int = 0


BLANK = Hypothesis("", 0.0)


def norm(config: GenerationConfig, tokens: int) -> float:
    """The divisor of a sum of log-probabilities of so many tokens."""
    if config.num_beams == 1:
        return 1.0
    length = (5 + tokens) / 6 if config.length_normalization == "gnmt" else tokens
    return float(length**config.length_penalty)


def joined(
    parts: Sequence[Hypothesis], words: Sequence[int], config: GenerationConfig
) -> Hypothesis:
    """A line's hypothesis, of one of each of its parts. words: of each part, in the source."""
    tokens = sum(part.tokens for part in parts)
    total = sum(part.score * norm(config, part.tokens) for part in parts)
    pairs, i, j = list[tuple[int, int]](), 0, 0
    for part, of_source in zip(parts, words, strict=True):
        pairs += [(i + source, j + target) for source, target in part.alignment]
        i, j = i + of_source, j + len(part.text.split())
    text = " ".join(part.text for part in parts if part.text)
    return Hypothesis(text, total / norm(config, tokens), tuple(pairs), tokens)


class Lines:
    """The hypotheses of a window's parts, as they come, and of its lines."""

    def __init__(self, window: Window, config: GenerationConfig, tokenizer: Tokenizer) -> None:
        self.window, self._config, self._tokenizer = window, config, tokenizer
        # Empty: not done, as what would be behind the last never is.
        self._found: list[list[Hypothesis]] = [[]] * (len(window.parts) + 1)
        self._parts = self._lines = 0  # given

    def add(self, chosen: Array, found: Sequence[list[Hypothesis]]) -> None:
        for part, own in zip(chosen.tolist(), found, strict=True):
            self._found[part] = own

    def finished(self) -> list[list[Hypothesis]]:
        """The lines, from the first that has not been given to the last before one that is not
        done."""
        done = self._found.index([], self._parts)
        ends = self.window.ends[self._lines : bisect_right(self.window.ends, done)]
        given = []
        for end in ends:
            begin, self._parts = self._parts, end
            given.append(self._found[begin] if end == begin + 1 else self._joined(begin, end))
        self._lines += len(ends)
        return given

    def _joined(self, begin: int, end: int) -> list[Hypothesis]:
        """The best of all parts joined, then the second best, ..."""
        if begin == end:
            return [BLANK]
        texts = self.window.texts[begin:end]
        code, _ = language_code(self._tokenizer, texts[0])
        words = [len(text.removeprefix(code).split()) for text in texts]
        ranks = zip(*self._found[begin:end], strict=True)
        return [joined(rank, words, self._config) for rank in ranks]


def without_repeats(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Of those with the same text the best. found: best first."""
    best = {one.text: one for one in reversed(found)}
    return sorted(best.values(), key=lambda one: one.score, reverse=True)


def most_hypotheses(config: GenerationConfig) -> int:
    """Of a sentence that a beam search can return."""
    if config.early_stopping is not True:
        return config.num_beams
    return min(config.num_beams, round(config.num_beams * config.patience))
