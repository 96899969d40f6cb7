"""What select draws, against the CPU's draws and against the distribution."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from decoding import _kernels as kernels
from decoding import reference
from tests.conftest import random
from tests.support.select import CPU, DTYPES, Rules, Search

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"temperature": 1e-6},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 600, "temperature": 1.5},
    {"top_k": 3000, "top_p": 0.95},
    {"top_p": 0.2},
    {"top_p": 0.9},
    {"top_p": 0.99, "temperature": 3.0},
    {"top_k": 20, "top_p": 0.7, "temperature": 0.8},
]


def drawn(logits: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """One draw of every row, by select and by the CPU."""
    rows, vocab = logits.shape
    rules = Rules(max_new=9, **options)
    search = Search("sampling", rules, rows, 1, vocab, logits.dtype)
    words = search.kept["random_row"]
    search.select(logits)
    theirs = kernels.sample(
        logits.float(), words, seed=rules.seed, steps=[1], temperature=rules.temperature,
        top_k=rules.top_k, top_p=rules.top_p, **CPU,
    )[1]  # fmt: skip
    return search.ours["tokens"][0].cpu(), theirs


@pytest.mark.gpu
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize(("rows", "vocab"), [(1000, 129), (300, 5001), (20, 50257)])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_draws_equal_the_cpus(
    dtype: torch.dtype, filters: dict[str, Any], rows: int, vocab: int, sharpness: float
) -> None:
    """All of them, but where two tokens' scores, or a prefix's mass and top_p, round apart."""
    ours, theirs = drawn((random(rows, vocab) * sharpness).to(dtype), **filters)
    assert int((ours != theirs).sum()) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_distribution(filters: dict[str, Any]) -> None:
    vocab, count = 40, 6000
    logits = random(1, vocab) * 1.5
    ids, _ = drawn(logits.repeat(count, 1), **filters)
    found = ids.long().bincount(minlength=vocab)
    expected = reference.filtered(logits[0], **filters).softmax(-1) * count
    assert not found[expected == 0].any()
    common = expected > 5
    observed = [*found[common].tolist(), int(found[~common].sum())]
    wanted = [*expected[common].tolist(), float(expected[~common].sum())]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    if len(wanted) > 1:
        assert chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [1000, 32000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_nucleus_that_ends_among_ties(dtype: torch.dtype, vocab: int) -> None:
    """Far below the peak; of equals, those with low ids belong to it."""
    logits = torch.full((1, vocab), -9.0)
    logits[0, -1] = math.log(vocab) - 9.0  # half of the mass
    ids, _ = drawn(logits.repeat(300, 1).to(dtype), top_p=0.75)
    others = ids[ids != vocab - 1]
    assert 0 < len(others) < 300
    assert vocab * 0.4 < int(others.max()) < vocab * 0.51 + 2


@pytest.mark.gpu
def test_draws_do_not_depend_on_the_batch() -> None:
    x, top_p = random(40, 5001) * 2, 0.9
    together = drawn(x, top_p=top_p)[0]
    search = Search("sampling", Rules(max_new=9, top_p=top_p), 1, 1, 5001)
    for row in (0, 7, 39):
        alone = replace(search)
        alone.ours["random_row"].fill_(3 * row + 1)
        alone.select(x[row : row + 1])
        assert int(alone.ours["tokens"][0, 0]) == together[row]
