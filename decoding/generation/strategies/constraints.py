"""force_words_ids: words that every row must hold, as trees of tokens for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ConstraintTable:
    """See csrc/kernels/search/constraints.h."""

    depths: list[int]
    first_edge: list[int]
    tokens: list[int]


def constraint_table(constraints: Sequence[Sequence[Sequence[int]]]) -> ConstraintTable:
    """constraints: each a list of alternative words, of which none begins with another."""
    depths = [max(map(len, words)) for words in constraints]
    first_edge: list[int] = []
    tokens: list[int] = []
    nodes = [
        (list(map(tuple, words)), 0) for words in constraints
    ]  # words through a node, its depth
    for words, depth in nodes:  # which grow as we go
        first_edge.append(len(tokens))
        for token in dict.fromkeys(word[depth] for word in words if len(word) > depth):
            tokens.append(token)
            through = [word for word in words if word[depth : depth + 1] == (token,)]
            nodes.append((through, depth + 1))
    return ConstraintTable(depths, [*first_edge, len(tokens)], tokens)
