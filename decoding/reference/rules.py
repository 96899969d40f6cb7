"""The constraints that every strategy obeys, and greedy search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Tokens = tuple[int, ...]
Logits = Callable[[Tokens], Tensor]


@dataclass(frozen=True)
class Rules:
    """Lengths, end tokens, banned and forced tokens. Steps count from 1 to `max_new`."""

    max_new: int
    min_new: int = 0
    eos: Tokens = ()
    banned: Tokens = ()
    forced_first: Tokens = ()
    forced_last: Tokens = ()
    stops: Callable[[Tokens], bool] = lambda _: False  # ends a row as an EOS does

    def apply(self, scores: Tensor, step: int) -> Tensor:
        """Scores [V] with -inf for tokens that may not follow; forced tokens, which win, get 0."""
        forced = self.forced_last if step == self.max_new else ()
        forced = forced or (self.forced_first if step == 1 else ())
        if forced:
            scores = torch.full_like(scores, -math.inf)
            scores[list(forced)] = 0.0
            return scores
        scores = scores.clone()
        scores[list(self.banned)] = -math.inf
        if step <= self.min_new:
            scores[list(self.eos)] = -math.inf
        return scores

    def ends(self, tokens: Tokens) -> bool:
        return tokens[-1] in self.eos or self.stops(tokens)


def greedy(logits: Logits, rules: Rules) -> Tokens:
    """The most probable token at every step, the lowest id among equals."""
    tokens: Tokens = ()
    for step in range(1, rules.max_new + 1):
        tokens += (int(rules.apply(logits(tokens), step).argmax()),)
        if rules.ends(tokens):
            break
    return tokens
