"""Sampling with random numbers that are functions of seed, row, step and token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoding.reference.filters import filtered
from decoding.reference.rules import Logits, Rules, Tokens


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


def sample(logits: Logits, rules: Rules, *, seed: int, row: int = 0, **filters: Any) -> Tokens:
    """Samples a token of softmax(filtered(..., **filters)) at every step, by the Gumbel-max trick.

    The argmax of scores plus Gumbel noise is distributed as their softmax (Kool et al. 2019).
    """
    tokens: Tokens = ()
    for step in range(1, rules.max_new + 1):
        scores = filtered(rules.apply(logits(tokens), step), **filters)
        if scores.max() == -math.inf:
            raise ValueError(f"no token may follow at step {step}")
        noise = gumbel(len(scores), seed=seed, step=step, row=row)
        tokens += (int((scores + noise).argmax()),)
        if rules.ends(tokens):
            break
    return tokens


@dataclass(frozen=True)
class Draws:
    """Draws the candidates of beams: beam k uses the random numbers of row `row` + k."""

    seed: int
    row: int
    filters: Mapping[str, Any]

    def filtered(self, scores: Tensor) -> Tensor:
        return filtered(scores, **self.filters).float()

    def noise(self, step: int, beams: int, vocab: int) -> Tensor:
        """The Gumbel noise of a step, float64 [beams, V]."""
        rows = range(self.row, self.row + beams)
        return torch.stack([gumbel(vocab, seed=self.seed, step=step, row=row) for row in rows])
