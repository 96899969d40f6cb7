"""Every search strategy in plain torch, one sentence at a time: slow and obvious.

It is the oracle of the kernels' tests, and the page to read for what a strategy means. A model is a
function from the tokens generated so far to the logits of the next one, float32 [V].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Tokens = tuple[int, ...]
Logits = Callable[[Tokens], Tensor]

FILL_IN = -1e9  # the sum of a beam that stands in for none


@dataclass(frozen=True)
class Rules:
    """What every strategy obeys. Steps count from 1; the last one is `max_new`."""

    max_new: int
    min_new: int = 0
    eos: Tokens = ()
    banned: Tokens = ()
    forced_first: Tokens = ()
    forced_last: Tokens = ()
    stops: Callable[[Tokens], bool] = lambda _: False  # ends a row as an EOS does

    def apply(self, scores: Tensor, step: int) -> Tensor:
        """Scores [V] with -inf for what may not follow; forced tokens, which override, get 0."""
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


@dataclass(frozen=True)
class Hypothesis:
    """A row of tokens. `beams` names the beam that each token extended."""

    sum: float  # of the tokens' log-probabilities, in float32
    tokens: Tokens = ()
    beams: Tokens = ()
    score: float = FILL_IN  # sum / length ** length_penalty, once the row has ended


@dataclass(frozen=True)
class Scoring:
    """What a row of so many tokens is worth, and when no better one can come."""

    length_penalty: float = 1.0
    early_stopping: bool | str = False
    gnmt: bool = False  # lengths as in Wu et al. 2016: (5 + tokens) / 6

    def score(self, total: float, tokens: int) -> float:
        length = (5 + tokens) / 6 if self.gnmt else tokens
        return float(torch.tensor(total) / length**self.length_penalty)

    def ended(self, row: Hypothesis) -> Hypothesis:
        score = self.score(row.sum, len(row.tokens))
        if row.sum <= FILL_IN / 10:  # what stems from a fill-in stays as bad as one
            score = min(score, row.sum)
        return replace(row, score=score)

    def settled(self, best: float, worst: float, step: int, max_new: int) -> bool:
        """Whether a row of sum `best` cannot beat a finished one of score `worst` any more."""
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
    """Beam search by the rules of transformers 5; the rows that finished, best first.

    Log-probabilities are taken before the rules apply and are not renormalised afterwards. Where
    the rules leave too little to choose from, the last rows are fill-ins with scores near -1e9.

    patience: so many times `beams` rows are kept and waited for (Kasai et al. 2022).
    diversity_rate: the q-th best continuation of a row competes with those of other rows as if it
    were lower by q * diversity_rate (Li, Monroe, Jurafsky 2016).
    draws: candidates are drawn; see `beam_sample`.
    """
    scoring, places = Scoring(length_penalty, early_stopping, gnmt), round(beams * patience)
    alive = [Hypothesis(0.0)] + [Hypothesis(FILL_IN)] * (beams - 1)
    finished: list[Hypothesis] = []
    for step in range(1, rules.max_new + 1):
        scores = [rules.apply(logits(h.tokens).log_softmax(-1), step) for h in alive]
        noise = None
        if draws is not None:
            scores = [draws.kept(x) for x in scores]
            noise = draws.noise(step, beams, len(scores[0]))
        candidates = _candidates(alive, scores, rules, diversity_rate=diversity_rate, noise=noise)

        def ends(candidate: Hypothesis, step: int = step) -> bool:
            return rules.ends(candidate.tokens) or step == rules.max_new

        # Only one of the best `beams` may end; a lower rank would not have stayed alive either.
        ended = [scoring.ended(c) for c in candidates[:beams] if ends(c)]
        finished = _best(finished + ended, places)
        alive = [c for c in candidates if not ends(c)]
        if not alive:
            break
        # Of what was drawn the best go on, else the first.
        alive = sorted(alive if draws else alive[:beams], key=lambda row: -row.sum)[:beams]
        alive = _filled_in(alive, beams)
        if len(finished) == places and scoring.settled(
            alive[0].sum, finished[-1].score, step, rules.max_new
        ):
            break
    return finished + [Hypothesis(FILL_IN)] * (places - len(finished))


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
    `penalty` for every beam of the groups before that has just taken it; a group that has stopped
    takes `pad`. The rules apply to what the penalty leaves. Returns `beams` rows, best first.

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
            candidates = _candidates(alive[n], scores, rules, first=n * size)
            ended = [scoring.ended(c) for c in candidates[:size] if rules.ends(c.tokens)]
            finished[n] = _best(finished[n] + ended, size)
            alive[n] = [c for c in candidates if not rules.ends(c.tokens)][:size]
            stopped[n] = not alive[n] or (
                len(finished[n]) == size
                and scoring.settled(candidates[0].sum, finished[n][-1].score, step, rules.max_new)
            )
            alive[n] = _filled_in(alive[n], size)
            taken += [row.tokens[-1] for row in alive[n]]
            if step == rules.max_new and not stopped[n]:
                finished[n] = _best(finished[n] + [scoring.ended(row) for row in alive[n]], size)
    rows = _best([row for group in finished for row in group], beams)
    return rows + [Hypothesis(FILL_IN)] * (beams - len(rows))


def _candidates(
    alive: list[Hypothesis],
    scores: list[Tensor],
    rules: Rules,
    *,
    first: int = 0,
    diversity_rate: float = 0.0,
    noise: Tensor | None = None,
) -> list[Hypothesis]:
    """The best continuations with a finite sum, the lower beam * V + token first among equals.

    They are so many that enough go on whatever ends. alive: beams `first`, `first` + 1, ...;
    scores: of their next tokens, [V] each. noise: [beams, V], to be added before they compete.
    """
    sums = torch.stack([x + row.sum for x, row in zip(scores, alive, strict=True)])
    ranks = sums.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1
    keys = sums - diversity_rate * ranks
    if noise is not None:
        keys = (keys + noise).float()  # which leaves nothing of it beside a fill-in's sum
    places = keys.flatten().argsort(descending=True, stable=True)
    candidates = []
    for place in places[: max(2, 1 + len(rules.eos)) * len(alive)].tolist():
        beam, token = divmod(place, sums.shape[1])
        row, total = alive[beam], float(sums[beam, token])
        if total > -math.inf:
            candidates.append(Hypothesis(total, (*row.tokens, token), (*row.beams, first + beam)))
    return candidates


def _best(rows: list[Hypothesis], count: int) -> list[Hypothesis]:
    return sorted(rows, key=lambda row: -row.score)[:count]


def _filled_in(alive: list[Hypothesis], count: int) -> list[Hypothesis]:
    return alive + [replace(row, sum=FILL_IN) for row in alive[:1]] * (count - len(alive))


def kept(
    scores: Tensor,
    *,
    temperature: float = 1.0,
    top_h: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    epsilon: float = 0.0,
    eta: float = 0.0,
    keep: int = 1,
) -> Tensor:
    """Scores [V] after the warpers, float64, -inf for the tokens that they take out.

    Each works on what those before it left; the defaults turn them off. With p the probabilities,
    best first and the lower id first among equals:

    top_h (Baghaei Potraghloo et al. 2025): of the 100 best, as if there were no others, as many as
    hold top_h of their entropy.
    top_k (Fan et al. 2018): the k largest and all that equal the k-th.
    top_p (Holtzman et al. 2020): tokens that less than top_p of the mass precedes.
    min_p (Nguyen et al. 2024): p of at least min_p times the largest.
    typical_p (Meister et al. 2022): those whose -log p is closest to the entropy, up to a mass of
    typical_p, and all that equal the last.
    epsilon, eta (Hewitt et al. 2022): p of at least epsilon; of at least eta, or less where the
    entropy is high.

    All but top_h leave at least `keep` tokens: the best, or those closest to the entropy.
    """
    x = scores.double() / temperature
    if top_h > 0:
        best = _first(x, 100)
        terms = _entropy_terms(x.where(best, -math.inf).softmax(-1))
        through = _preceding(x, terms) + terms
        x = x.where(best & ((through <= top_h * through[best].max()) | _first(x, 1)), -math.inf)
    if top_k > 0:
        x = x.where(x >= _kth_largest(x, max(top_k, keep)), -math.inf)
    if top_p < 1:
        x = x.where((_preceding(x, x.softmax(-1)) < top_p) | _first(x, keep), -math.inf)
    if min_p > 0:
        p = x.softmax(-1)
        x = x.where((p >= min_p * p.max()) | _first(x, keep), -math.inf)
    if typical_p < 1:
        p = x.softmax(-1)
        typicality = -(x.log_softmax(-1) + _entropy_terms(p).sum()).abs()
        needed = (_preceding(typicality, p) < typical_p) & (p > 0)
        last = typicality[needed].min() if needed.any() else -math.inf
        x = x.where((typicality >= last) | _first(typicality, keep), -math.inf)
    if epsilon > 0:
        p = x.softmax(-1)
        x = x.where((p >= epsilon) | (x >= _kth_largest(x, keep)), -math.inf)
    if eta > 0:
        p = x.softmax(-1)
        least = min(eta, math.sqrt(eta) * math.exp(-_entropy_terms(p).sum()))
        x = x.where((p >= least) | (x >= _kth_largest(x, keep)), -math.inf)
    return x


def _entropy_terms(p: Tensor) -> Tensor:
    return -(p * p.log()).nan_to_num(0.0)


def _kth_largest(x: Tensor, k: int) -> Tensor:
    return x.topk(min(k, len(x))).values[-1]


def _first(key: Tensor, count: int) -> Tensor:
    """Marks the `count` tokens of the largest key, the lower id first among equals."""
    first = torch.zeros_like(key, dtype=torch.bool)
    first[key.argsort(descending=True, stable=True)[:count]] = True
    return first


def _preceding(key: Tensor, weight: Tensor) -> Tensor:
    """The weight before each token when they are ordered by key, best first."""
    order = key.argsort(descending=True, stable=True)
    preceding = torch.empty_like(weight)
    preceding[order] = weight[order].cumsum(-1) - weight[order]
    return preceding


def philox(key: int, counter: list[Tensor]) -> list[Tensor]:
    """Philox4x32-10 (Salmon et al. 2011) of counters given as four int64 tensors of words."""
    low = 0xFFFFFFFF
    k0, k1 = key & low, key >> 32
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2  # modulo 2^64, which keeps all 64 bits
        c0, c1 = (p1 >> 32 & low) ^ c1 ^ k0, p1 & low
        c2, c3 = (p0 >> 32 & low) ^ c3 ^ k1, p0 & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return [c0, c1, c2, c3]


def gumbel(vocab: int, *, seed: int, step: int, row: int) -> Tensor:
    """The noise of every token, float64 [V]: a function of seed, row, step and token alone."""
    first = torch.arange((vocab + 3) // 4)
    words = philox(seed, [first, *(torch.full_like(first, x) for x in (step, row, 0))])
    uniform = (torch.stack(words, dim=1).flatten()[:vocab].double() + 0.5) * 2.0**-32
    return -(-(-uniform).log1p()).log()


def sample(logits: Logits, rules: Rules, *, seed: int, row: int = 0, **warpers: Any) -> Tokens:
    """At every step a random token of softmax(kept(..., **warpers)), by the Gumbel-max trick.

    The argmax of scores plus Gumbel noise is distributed as their softmax (Kool et al. 2019).
    """
    tokens: Tokens = ()
    for step in range(1, rules.max_new + 1):
        scores = kept(rules.apply(logits(tokens), step), **warpers)
        if scores.max() == -math.inf:
            raise ValueError(f"no token may follow at step {step}")
        noise = gumbel(len(scores), seed=seed, step=step, row=row)
        tokens += (int((scores + noise).argmax()),)
        if rules.ends(tokens):
            break
    return tokens


@dataclass(frozen=True)
class Draws:
    """What chooses the candidates of beams: beam k has the random numbers of row `row` + k."""

    seed: int
    row: int
    warpers: Mapping[str, Any]

    def kept(self, scores: Tensor) -> Tensor:
        return kept(scores, **self.warpers).float()

    def noise(self, step: int, beams: int, vocab: int) -> Tensor:
        """Float64 [beams, V]."""
        rows = range(self.row, self.row + beams)
        return torch.stack([gumbel(vocab, seed=self.seed, step=step, row=row) for row in rows])


def beam_sample(
    logits: Logits,
    rules: Rules,
    *,
    beams: int,
    seed: int,
    row: int = 0,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    **warpers: Any,
) -> list[Hypothesis]:
    """Beam search whose candidates are drawn, without replacement, from the softmax of their sums.

    The best of sum plus Gumbel noise are such draws, in that order (Kool et al. 2019), and only the
    first `beams` drawn may end. The best by sum of those that do not end go on. Sums add up what
    the warpers leave of the log-probabilities; those leave as many tokens as may end, and one.
    """
    draws = Draws(seed, row, {"keep": max(2, 1 + len(rules.eos)), **warpers})
    return beam_search(
        logits,
        rules,
        beams=beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        draws=draws,
    )
