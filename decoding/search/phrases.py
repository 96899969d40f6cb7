"""force_words_ids: words that every row must hold, as tables for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.batching import check_ids

Words = Sequence[Sequence[int] | Sequence[Sequence[int]]]


@dataclass(frozen=True)
class PhraseTable:
    """Phrases as trees of tokens: see csrc/kernels/phrases.h."""

    heights: list[int]
    first_edge: list[int]
    tokens: list[int]


def phrase_table(force_words_ids: Words, eos: Sequence[int], vocab: int) -> PhraseTable:
    """Checks force_words_ids, a list of words or of lists of alternative words, as ids.

    Raises TypeError and ValueError for what is none; where a word has no tokens, one that the model
    has not or an EOS; and where an alternative begins with another, which would always do for it.
    """
    phrases = [_alternatives(phrase) for phrase in force_words_ids]
    if not phrases:
        raise ValueError("force_words_ids is empty: leave it out, or name the words")
    for alternatives in phrases:
        for word in alternatives:
            _check_word(word, eos, vocab)
        _check_apart(alternatives)
    return _table(phrases)


def _alternatives(phrase: Sequence[int] | Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    if isinstance(phrase, (str, int)) or not isinstance(phrase, Sequence) or not phrase:
        raise TypeError(
            "force_words_ids takes a list of words, each a list of ids, or of lists of alternative "
            f"words: {phrase!r} is neither"
        )
    words = phrase if isinstance(phrase[0], Sequence) else [phrase]
    for word in words:
        if not isinstance(word, Sequence) or not all(isinstance(id, int) for id in word):
            raise TypeError(f"a word of force_words_ids is a list of ids, got {word!r}")
    return [tuple(word) for word in words]  # type: ignore[arg-type]


def _check_word(word: tuple[int, ...], eos: Sequence[int], vocab: int) -> None:
    if not word:
        raise ValueError("force_words_ids holds a word without tokens: take it out")
    check_ids("force_words_ids", list(word), vocab)
    if set(word) & set(eos):
        raise ValueError(
            f"force_words_ids holds an end token in {list(word)}: no row goes on behind it"
        )


def _check_apart(alternatives: list[tuple[int, ...]]) -> None:
    for i, word in enumerate(alternatives):
        for other in alternatives[:i]:
            n = min(len(word), len(other))
            if word[:n] == other[:n]:
                raise ValueError(
                    f"of the alternatives {list(other)} and {list(word)} in force_words_ids one "
                    "begins with the other: leave the longer one out"
                )


def _table(phrases: list[list[tuple[int, ...]]]) -> PhraseTable:
    heights = [max(map(len, alternatives)) for alternatives in phrases]
    first_edge: list[int] = []
    tokens: list[int] = []
    nodes = [(alternatives, 0) for alternatives in phrases]  # what goes through a node, its depth
    for words, depth in nodes:  # grows as it goes
        first_edge.append(len(tokens))
        following = dict.fromkeys(word[depth] for word in words if len(word) > depth)
        for token in following:
            tokens.append(token)
            through = [word for word in words if word[depth : depth + 1] == (token,)]
            nodes.append((through, depth + 1))
    return PhraseTable(heights, [*first_edge, len(tokens)], tokens)
