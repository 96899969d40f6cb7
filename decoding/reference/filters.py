"""Filters of sampling: temperature, top-h, top-k, top-p, min-p, typical, epsilon and eta."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def filtered(
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
    """Scores [V] after the filters, float64, -inf for the tokens that they remove.

    Each filters the result of those before it; defaults turn them off. With p the probabilities,
    best first and the lower id first among equals:

    top_h (Baghaei Potraghloo et al. 2025): of the 100 best, renormalised, the first that hold a
    share top_h of their entropy.
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
