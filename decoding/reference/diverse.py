"""Group diverse beam search (Vijayakumar et al. 2016), as transformers 4 has it."""

from __future__ import annotations

import torch

from decoding.reference.beams import (
    FILL_IN,
    Hypothesis,
    Scoring,
    best_of,
    continuations,
    filled_in,
)
from decoding.reference.rules import Logits, Rules


def diverse_beam_search(
    logits: Logits,
    rules: Rules,
    *,
    beams: int,
    groups: int,
    penalty: float,
    pad: int,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[Hypothesis]:
    """Group diverse beam search (Vijayakumar et al. 2016) by the rules of transformers 4.

    Each group is a beam search of its own. In a step they go one after the other, and a token costs
    `penalty` for every beam of the groups before that has just taken it; a group that has stopped,
    or of which no row goes on, takes `pad`. The rules apply to what the penalty leaves. Returns
    `beams` rows, best first.

    Unlike in `beam_search`, a group stops when the best of all its candidates cannot win, those
    that end included; and after the last step every row that goes on finishes.
    """
    size, scoring = beams // groups, Scoring(length_penalty, early_stopping)
    alive = [[Hypothesis(0.0)] + [Hypothesis(FILL_IN)] * (size - 1) for _ in range(groups)]
    finished: list[list[Hypothesis]] = [[] for _ in range(groups)]
    stopped = [False] * groups
    for step in range(1, rules.max_new + 1):
        taken: list[int] = []
        for n in range(groups):
            if stopped[n]:
                taken += [pad] * size
                continue
            scores = []
            for row in alive[n]:
                values = logits(row.tokens).log_softmax(-1)
                counts = torch.bincount(torch.tensor(taken).long(), minlength=len(values))
                scores.append(rules.apply(values - penalty * counts, step))
            candidates = continuations(alive[n], scores, rules, first=n * size)
            ended = [scoring.ended(c) for c in candidates[:size] if rules.ends(c.tokens)]
            finished[n] = best_of(finished[n] + ended, size)
            alive[n] = [c for c in candidates if not rules.ends(c.tokens)][:size]
            stopped[n] = not alive[n] or (
                len(finished[n]) == size
                and scoring.settled(candidates[0].sum, finished[n][-1].score, step, rules.max_new)
            )
            alive[n] = filled_in(alive[n], size)
            taken += [row.tokens[-1] for row in alive[n]] or [pad] * size
            if step == rules.max_new and not stopped[n]:
                finished[n] = best_of(finished[n] + [scoring.ended(row) for row in alive[n]], size)
    rows = best_of([row for group in finished for row in group], beams)
    return rows + [Hypothesis(FILL_IN)] * (beams - len(rows))
