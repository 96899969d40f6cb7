"""Every search strategy in plain torch, one sentence at a time: slow and obvious.

It is the oracle of the kernels' tests, and the page to read for what a strategy means. A model is a
function from the tokens generated so far to the logits of the next one, float32 [V].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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


def greedy(logits: Logits, rules: Rules) -> Tokens:
    """The most probable token at every step, the lowest id among equals."""
    tokens: Tokens = ()
    for step in range(1, rules.max_new + 1):
        tokens += (int(rules.apply(logits(tokens), step).argmax()),)
        if tokens[-1] in rules.eos:
            break
    return tokens


@dataclass(frozen=True)
class Hypothesis:
    """A row of tokens. `beams` names the beam that each token extended."""

    sum: float  # of the tokens' log-probabilities, in float32
    tokens: Tokens = ()
    beams: Tokens = ()
    score: float = FILL_IN  # sum / length ** length_penalty, once the row has ended


def beam_search(
    logits: Logits,
    rules: Rules,
    *,
    beams: int,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[Hypothesis]:
    """Beam search by the rules of transformers 5; `beams` finished rows, best first.

    Log-probabilities are taken before the rules apply and are not renormalised afterwards. Where
    the rules leave too little to choose from, the last rows are fill-ins with scores near -1e9.
    """
    alive = [Hypothesis(0.0)] + [Hypothesis(FILL_IN)] * (beams - 1)
    finished: list[Hypothesis] = []
    for step in range(1, rules.max_new + 1):
        sums = torch.stack(
            [rules.apply(logits(h.tokens).log_softmax(-1), step) + h.sum for h in alive]
        )
        candidates = _best_candidates(alive, sums, max(2, 1 + len(rules.eos)) * beams)

        def ends(candidate: Hypothesis, step: int = step) -> bool:
            return candidate.tokens[-1] in rules.eos or step == rules.max_new

        # Only one of the best `beams` may end; a lower rank would not have stayed alive either.
        ended = [_scored(c, length_penalty) for c in candidates[:beams] if ends(c)]
        finished = sorted(finished + ended, key=lambda h: -h.score)[:beams]
        alive = [c for c in candidates if not ends(c)][:beams]
        if not alive:
            break
        alive += [Hypothesis(FILL_IN, alive[0].tokens, alive[0].beams)] * (beams - len(alive))
        if len(finished) == beams:
            # What the best beam can still reach: its sum can only fall, its length only grow.
            longest = early_stopping == "never" and length_penalty > 0
            bound = _penalised(alive[0].sum, rules.max_new if longest else step, length_penalty)
            if early_stopping is True or bound <= finished[-1].score:
                break
    return finished + [Hypothesis(FILL_IN)] * (beams - len(finished))


def _best_candidates(alive: list[Hypothesis], sums: Tensor, count: int) -> list[Hypothesis]:
    """The best continuations with a finite sum, the lower beam * V + token first among equals."""
    vocab = sums.shape[1]
    values, places = sums.flatten().sort(descending=True, stable=True)
    candidates = []
    for value, place in zip(values[:count].tolist(), places[:count].tolist(), strict=True):
        if value > -math.inf:
            beam, token = divmod(place, vocab)
            parent = alive[beam]
            candidates.append(Hypothesis(value, (*parent.tokens, token), (*parent.beams, beam)))
    return candidates


def _penalised(total: float, length: int, length_penalty: float) -> float:
    return float(torch.tensor(total) / length**length_penalty)


def _scored(row: Hypothesis, length_penalty: float) -> Hypothesis:
    score = _penalised(row.sum, len(row.tokens), length_penalty)
    if row.sum <= FILL_IN / 10:  # what stems from a fill-in stays as bad as one
        score = min(score, row.sum)
    return Hypothesis(row.sum, row.tokens, row.beams, score)


def kept(scores: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Scores [V] after the warpers, float64, -inf for the tokens that they take out.

    top_k (0: off) keeps the k largest and all that equal the k-th. top_p (1: off) then keeps the
    tokens that less than top_p of the mass precedes, best first.
    """
    scores = scores.double() / temperature
    if 0 < top_k < len(scores):
        scores[scores < scores.topk(top_k).values[-1]] = -math.inf
    if top_p < 1.0:
        values, ids = scores.sort(descending=True, stable=True)
        probabilities = values.softmax(-1)
        preceding = probabilities.cumsum(-1) - probabilities
        scores[ids[preceding >= top_p]] = -math.inf
    return scores


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


def sample(
    logits: Logits,
    rules: Rules,
    *,
    seed: int,
    row: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Tokens:
    """At every step a random token of softmax(kept(...)), by the Gumbel-max trick.

    The argmax of scores plus Gumbel noise is distributed as their softmax (Kool et al. 2019).
    """
    tokens: Tokens = ()
    for step in range(1, rules.max_new + 1):
        scores = rules.apply(logits(tokens), step)
        scores = kept(scores, temperature=temperature, top_k=top_k, top_p=top_p)
        if scores.max() == -math.inf:
            raise ValueError(f"no token may follow at step {step}")
        noise = gumbel(len(scores), seed=seed, step=step, row=row)
        tokens += (int((scores + noise).argmax()),)
        if tokens[-1] in rules.eos:
            break
    return tokens
