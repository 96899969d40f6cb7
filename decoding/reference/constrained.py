"""Lexically constrained beam search in plain torch, one sentence at a time.

A row must contain phrases, in any order and without overlap: of each phrase one of its
alternatives, token after token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from decoding.reference.beams import (
    FILL_IN,
    Hypothesis,
    Scoring,
    best_of,
    continuations,
    filled_in,
)
from decoding.reference.rules import Logits, Rules, Tokens

Phrase = tuple[Tokens, ...]  # alternatives, none of which begins with another


@dataclass(frozen=True)
class Progress:
    """The progress of a row. A phrase that is begun is then continued or given up."""

    pending: tuple[int, ...]  # phrases not yet contained, in the order in which they are tried
    active: int = -1  # the phrase that is begun; -1: none
    seen: Tokens = ()  # of that phrase

    @property
    def complete(self) -> bool:
        return not self.pending and self.active < 0


@dataclass(frozen=True)
class Phrases:
    """The phrases that a row must contain."""

    phrases: tuple[Phrase, ...]

    def after(self, row: Tokens) -> Progress:
        progress = Progress(tuple(range(len(self.phrases))))
        for token in row:
            progress = self._step(progress, token)
        return progress

    def wanted(self, progress: Progress) -> list[int]:
        """The tokens that advance a row; a phrase that is begun comes before all others."""
        phrases = progress.pending if progress.active < 0 else (progress.active,)
        return [token for phrase in phrases for token in self._next(phrase, progress.seen)]

    def bank(self, progress: Progress) -> int:
        """Number of constraint tokens generated, each phrase counted as long as the longest."""
        longest = max(self._longest(i) for i in range(len(self.phrases)))
        count = (len(self.phrases) - len(progress.pending)) * longest
        if progress.active >= 0:
            count -= self._longest(progress.active) - len(progress.seen)
        return count

    def _longest(self, phrase: int) -> int:
        return max(map(len, self.phrases[phrase]))

    def _next(self, phrase: int, seen: Tokens) -> list[int]:
        n = len(seen)
        return [words[n] for words in self.phrases[phrase] if words[:n] == seen and len(words) > n]

    def _step(self, progress: Progress, token: int) -> Progress:
        if progress.active >= 0:
            if token not in self._next(progress.active, progress.seen):
                return Progress((*progress.pending, progress.active))  # and begins no other one
            phrase, pending = progress.active, progress.pending
        else:
            begun = [i for i in progress.pending if token in self._next(i, ())]
            if not begun:
                return progress
            phrase, pending = begun[0], tuple(i for i in progress.pending if i != begun[0])
        seen = (*progress.seen, token)
        return Progress(pending, phrase, seen) if self._next(phrase, seen) else Progress(pending)


def constrained_beam_search(
    logits: Logits,
    rules: Rules,
    phrases: Phrases,
    *,
    beams: int,
    prompt: Tokens = (),
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[Hypothesis]:
    """Beam search whose rows contain all phrases, by the rules of transformers 4; best first.

    Beside the best continuations those compete that advance a row. Rows of equal progress
    form a bank, and banks give their best rows in turns (Post and Vilar 2018). Only a row that
    holds all phrases may end; the prompt counts as part of it. As in `diverse_beam_search`, the
    bound is the best of all candidates, and after the last step what goes on finishes.

    That may lose the last row that contains all phrases, and transformers then returns others.
    Here every returned row contains them. Where too few rows finish, rows follow that contain all
    phrases but whose end was not among the best candidates; and as long as there is no row of
    either kind, the last that contains all phrases continues with its best token. Banks are
    compared before sums.
    """
    scoring = Scoring(length_penalty, early_stopping)
    alive = [Hypothesis(0.0)] + [Hypothesis(FILL_IN)] * (beams - 1)
    finished: list[Hypothesis] = []
    spare: list[Hypothesis] = []

    def progress(row: Hypothesis) -> Progress:
        return phrases.after((*prompt, *row.tokens))

    for step in range(1, rules.max_new + 1):
        scores = [rules.apply(logits(row.tokens).log_softmax(-1), step) for row in alive]
        candidates = continuations(alive, scores, rules)
        whole = [beam for beam, row in enumerate(alive) if progress(row).complete]
        ends = [c for c in candidates[:beams] if rules.ends(c.tokens) and progress(c).complete]
        ends = [c for c in ends if c.sum > FILL_IN / 10]
        late = _extensions(alive, scores, {beam: rules.eos for beam in whole})
        finished = best_of(finished + [scoring.ended(row) for row in ends], beams)
        spare = best_of(spare + [scoring.ended(row) for row in late if row not in ends], beams)

        going = [c for c in candidates if not rules.ends(c.tokens)][:beams]
        wanted = {beam: phrases.wanted(progress(row)) for beam, row in enumerate(alive)}
        going += _extensions(alive, scores, wanted)
        going = [row for row in going if row.sum > FILL_IN / 10 and not rules.ends(row.tokens)]
        next_beams = _in_turns(going, [phrases.bank(progress(row)) for row in going])[:beams]
        if not finished and not spare and not any(progress(row).complete for row in next_beams):
            rest = _extensions(alive, scores, {beam: range(len(scores[beam])) for beam in whole})
            rest = [row for row in rest if not rules.ends(row.tokens)]
            if rest:
                next_beams[beams - 1 :] = [max(rest, key=lambda row: row.sum)]
        if not next_beams or (
            len(finished) == beams
            and scoring.settled(candidates[0].sum, finished[-1].score, step, rules.max_new)
        ):
            break
        if step == rules.max_new:
            ends = [row for row in next_beams if progress(row).complete]
            finished = best_of(finished + [scoring.ended(row) for row in ends], beams)
        alive = filled_in(next_beams, beams)
    return (finished + spare + [Hypothesis(FILL_IN)] * beams)[:beams]


def _extensions(
    alive: list[Hypothesis], scores: list[Tensor], tokens: Mapping[int, Iterable[int]]
) -> list[Hypothesis]:
    """Rows extended by the tokens given for each beam; none extends a fill-in."""
    rows = []
    for beam, row in enumerate(alive):
        for token in tokens.get(beam, ()):
            total = float(scores[beam][token] + row.sum)
            if total > FILL_IN / 10:
                rows.append(Hypothesis(total, (*row.tokens, token), (*row.beams, beam)))
    return rows


def _in_turns(rows: list[Hypothesis], banks: list[int]) -> list[Hypothesis]:
    """The best of each bank, the highest bank's first; then the second best; and so on."""
    ranked = sorted(zip(rows, banks, strict=True), key=lambda pair: (-pair[1], -pair[0].sum))
    given: dict[int, list[Hypothesis]] = {}
    turns = []
    for row, bank in ranked:
        rows_before = given.setdefault(bank, [])
        if row.tokens not in [other.tokens for other in rows_before]:
            turns.append((len(rows_before), row))
            rows_before.append(row)
    return [row for _, row in sorted(turns, key=lambda turn: turn[0])]
