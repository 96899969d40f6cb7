"""Beam search and beam sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from decoding.reference.draws import Draws
from decoding.reference.rules import Logits, Rules, Tokens

FILL_IN = -1e9  # the sum of a placeholder where there is no beam


@dataclass(frozen=True)
class Hypothesis:
    """A row of tokens. `beams` names the beam that each token extended."""

    sum: float  # of the tokens' log-probabilities, in float32
    tokens: Tokens = ()
    beams: Tokens = ()
    score: float = FILL_IN  # sum / length ** length_penalty, once the row has ended


@dataclass(frozen=True)
class Scoring:
    """Scores of finished rows, and the bound at which a search stops."""

    length_penalty: float = 1.0
    early_stopping: bool | str = False
    gnmt: bool = False  # lengths as in Wu et al. 2016: (5 + tokens) / 6

    def score(self, total: float, tokens: int) -> float:
        length = (5 + tokens) / 6 if self.gnmt else tokens
        return float(torch.tensor(total) / length**self.length_penalty)

    def ended(self, row: Hypothesis) -> Hypothesis:
        score = self.score(row.sum, len(row.tokens))
        if row.sum <= FILL_IN / 10:  # a continuation of a fill-in stays as bad as one
            score = min(score, row.sum)
        return replace(row, score=score)

    def settled(self, best: float, worst: float, step: int, max_new: int) -> bool:
        """Whether a row of sum `best` can no longer beat a finished one of score `worst`."""
        # Sums can only fall, and lengths only grow.
        longest = self.early_stopping == "never" and self.length_penalty > 0
        bound = self.score(best, max_new if longest else step)
        return self.early_stopping is True or bound <= worst


def beam_search(
    logits: Logits,
    rules: Rules,
    *,
    beams: int,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    gnmt: bool = False,
    patience: float = 1.0,
    diversity_rate: float = 0.0,
    draws: Draws | None = None,
) -> list[Hypothesis]:
    """Beam search by the rules of transformers 5; returns the finished rows, best first.

    Log-probabilities are taken before the rules apply and are not renormalised afterwards. Where
    the rules leave too few candidates, the last rows are fill-ins with scores near -1e9.

    patience: the search collects patience * beams finished rows (Kasai et al. 2022).
    diversity_rate: the q-th best continuation of a row competes with those of other rows as if it
    were lower by q * diversity_rate (Li, Monroe, Jurafsky 2016).
    draws: samples the candidates; see `beam_sample`.
    """
    scoring, max_finished = Scoring(length_penalty, early_stopping, gnmt), round(beams * patience)
    alive = [Hypothesis(0.0)] + [Hypothesis(FILL_IN)] * (beams - 1)
    finished: list[Hypothesis] = []
    for step in range(1, rules.max_new + 1):
        scores = [rules.apply(logits(h.tokens).log_softmax(-1), step) for h in alive]
        noise = None
        if draws is not None:
            scores = [draws.filtered(x) for x in scores]
            noise = draws.noise(step, beams, len(scores[0]))
        candidates = continuations(alive, scores, rules, diversity_rate=diversity_rate, noise=noise)

        def ends(candidate: Hypothesis, step: int = step) -> bool:
            return rules.ends(candidate.tokens) or step == rules.max_new

        # Only one of the best `beams` may end; a lower rank would not have stayed alive either.
        ended = [scoring.ended(c) for c in candidates[:beams] if ends(c)]
        finished = best_of(finished + ended, max_finished)
        alive = [c for c in candidates if not ends(c)]
        if not alive:
            break
        # Of sampled candidates the best continue, else the first.
        alive = sorted(alive if draws else alive[:beams], key=lambda row: -row.sum)[:beams]
        alive = filled_in(alive, beams)
        if len(finished) == max_finished and scoring.settled(
            alive[0].sum, finished[-1].score, step, rules.max_new
        ):
            break
    return finished + [Hypothesis(FILL_IN)] * (max_finished - len(finished))


def beam_sample(
    logits: Logits,
    rules: Rules,
    *,
    beams: int,
    seed: int,
    row: int = 0,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    **filters: Any,
) -> list[Hypothesis]:
    """Beam search that samples candidates, without replacement, from the softmax of their sums.

    The best of sum plus Gumbel noise are such draws, in that order (Kool et al. 2019), and only the
    first `beams` drawn may end. The best by sum of those that do not end continue. Sums add up
    filtered log-probabilities; the filters keep one token more than there are end tokens.
    """
    draws = Draws(seed, row, {"keep": max(2, 1 + len(rules.eos)), **filters})
    return beam_search(
        logits,
        rules,
        beams=beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        draws=draws,
    )


def continuations(
    alive: list[Hypothesis],
    scores: list[Tensor],
    rules: Rules,
    *,
    first: int = 0,
    diversity_rate: float = 0.0,
    noise: Tensor | None = None,
) -> list[Hypothesis]:
    """The best continuations with a finite sum, the lower beam * V + token first among equals.

    They are so many that enough continue whichever end. alive: beams `first`, `first` + 1, ...;
    scores: of their next tokens, [V] each. noise: [beams, V], to be added before they compete.
    """
    sums = torch.stack([x + row.sum for x, row in zip(scores, alive, strict=True)])
    ranks = sums.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1
    keys = sums - diversity_rate * ranks
    if noise is not None:
        keys = (keys + noise).float()  # in float32 noise vanishes beside a fill-in's sum
    order = keys.flatten().argsort(descending=True, stable=True)
    candidates = []
    for place in order[: max(2, 1 + len(rules.eos)) * len(alive)].tolist():
        beam, token = divmod(place, sums.shape[1])
        row, total = alive[beam], float(sums[beam, token])
        if total > -math.inf:
            candidates.append(Hypothesis(total, (*row.tokens, token), (*row.beams, first + beam)))
    return candidates


def best_of(rows: list[Hypothesis], count: int) -> list[Hypothesis]:
    return sorted(rows, key=lambda row: -row.score)[:count]


def filled_in(alive: list[Hypothesis], count: int) -> list[Hypothesis]:
    return alive + [replace(row, sum=FILL_IN) for row in alive[:1]] * (count - len(alive))
