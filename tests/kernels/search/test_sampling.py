"""sample against the reference's draws, and against the distribution they must have."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from decoding import _C, reference
from decoding import _kernels as kernels
from tests.conftest import random

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 500, "temperature": 1.5},
    {"top_p": 0.2},
    {"top_p": 0.9},
    {"top_p": 0.99, "temperature": 3.0},
    {"top_k": 20, "top_p": 0.7, "temperature": 0.8},
]


def draw(
    logits: Tensor, rows: list[int], isa: str, threads: int = 1, **options: Any
) -> tuple[Tensor, Tensor]:
    """(logits, ids) of one draw for each row; `rows` are the words of their counters. step: of all,
    or of each row."""
    options = {"seed": 1, "step": 1, **options}
    step = options.pop("step")
    options["steps"] = step if isinstance(step, list) else [step]
    words = torch.tensor(rows, dtype=torch.int32)
    values, ids = kernels.sample(logits, words, isa=isa, threads=threads, **options)
    return values, ids


@settings(max_examples=300)
@given(
    isa=st.sampled_from(_C.isas()),
    threads=st.sampled_from([1, 2, 3]),
    vocab=st.sampled_from([1, 2, 127, 128, 129, 1000, 5001]),
    sharpness=st.sampled_from([0.0, 1.0, 3.0, 20.0]),
    filters=st.sampled_from(FILTERS),
    banned=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(1, 2**31 - 1),
)
def test_draws_equal_the_reference(
    isa: str,
    threads: int,
    vocab: int,
    sharpness: float,
    filters: dict[str, Any],
    banned: float,
    seed: int,
    step: int,
) -> None:
    logits = random(3, vocab, seed=seed % 1000) * sharpness
    logits[torch.rand(3, vocab, generator=torch.Generator().manual_seed(seed)) < banned] = -math.inf
    rows = [0, 5, 2**31 - 1]
    values, ids = draw(logits, rows, isa, threads, seed=seed, step=step, **filters)
    for x, row, value, token in zip(logits, rows, values, ids.tolist(), strict=True):
        scores = reference.filtered(x, **filters)
        if scores.max() == -math.inf:
            assert token == -1 and value == -math.inf
        else:
            noise = reference.gumbel(vocab, seed=seed, step=step, row=row)
            assert token == int((scores + noise).argmax())
            assert value == x[token]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vary", ["row", "step", "seed"])
def test_distribution(filters: dict[str, Any], vary: str) -> None:
    """Chi-square of draws that differ in one word of the counter, or in the key."""
    vocab, count, isa = 40, 6000, _C.isas()[0]
    logits = random(1, vocab) * 1.5
    if vary == "row":
        ids = draw(logits.repeat(count, 1), list(range(count)), isa, **filters)[1]
    else:
        some = range(1, count // 4 + 1)
        ids = torch.cat([draw(logits, [3], isa, **{vary: i}, **filters)[1] for i in some])
    drawn = ids.long().bincount(minlength=vocab)
    expected = reference.filtered(logits[0], **filters).softmax(-1) * len(ids)
    assert not drawn[expected == 0].any()
    common = expected > 5
    observed = [*drawn[common].tolist(), int(drawn[~common].sum())]
    wanted = [*expected[common].tolist(), float(expected[~common].sum())]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    if len(wanted) > 1:
        assert chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.parametrize("filters", FILTERS)
def test_sentences_at_steps_of_their_own(isa: str, threads: int, filters: dict[str, Any]) -> None:
    logits, rows, steps = random(4, 1000) * 2, [4, 0, 9, 2], [1, 7, 2, 7]
    together = draw(logits, rows, isa, threads, step=steps, **filters)[1]
    for i, (row, step) in enumerate(zip(rows, steps, strict=True)):
        alone = draw(logits[i : i + 1].clone(), [row], isa, step=step, **filters)[1]
        assert torch.equal(alone, together[i : i + 1])


@pytest.mark.parametrize("filters", FILTERS)
def test_draws_do_not_depend_on_batch_or_threads(
    isa: str, threads: int, filters: dict[str, Any]
) -> None:
    logits, rows = random(6, 1000) * 2, [4, 0, 9, 2, 77, 5]
    together = draw(logits, rows, isa, threads, **filters)[1]
    backwards = draw(logits.flip(0).contiguous(), rows[::-1], isa, 1, **filters)[1]
    assert torch.equal(together, backwards.flip(0))
    for i, row in enumerate(rows):
        alone = draw(logits[i : i + 1].clone(), [row], isa, threads, **filters)[1]
        assert alone == together[i]


def test_ties_at_the_kth_stay(isa: str) -> None:
    logits = torch.full((1, 300), -1.0)
    logits[0, [3, 130, 131, 299]] = 2.0
    ids = draw(logits.repeat(200, 1), list(range(200)), isa, top_k=2)[1]
    assert set(ids.tolist()) == {3, 130, 131, 299}


def test_top_p_keeps_the_token_that_crosses(isa: str) -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in [(0.45, {0}), (0.55, {0, 1}), (0.85, {0, 1, 2}), (0.97, {0, 1, 2, 3})]:
        ids = draw(logits.repeat(300, 1), list(range(300)), isa, top_p=top_p)[1]
        assert set(ids.tolist()) == kept


def test_top_p_counts_what_top_k_kept(isa: str) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # 0.4 of 0.7 is 0.57 of the mass.
    ids = draw(logits.repeat(300, 1), list(range(300)), isa, top_k=2, top_p=0.55)[1]
    assert set(ids.tolist()) == {0}


@pytest.mark.parametrize("vocab", [1000, 32000])
def test_equal_logits_far_below_the_peak(isa: str, vocab: int) -> None:
    """The nucleus ends among ties: those with low ids belong to it."""
    logits = torch.full((1, vocab), -9.0)
    logits[0, -1] = math.log(vocab) - 9.0  # half of the mass
    ids = draw(logits.repeat(300, 1), list(range(300)), isa, top_p=0.75)[1]
    others = ids[ids != vocab - 1]
    assert 0 < len(others) < 300
    assert vocab * 0.4 < int(others.max()) < vocab * 0.5 + 2


def test_a_low_temperature_takes_the_best(isa: str) -> None:
    logits = random(5, 1000)
    ids = draw(logits, list(range(5)), isa, temperature=1e-6)[1]
    assert torch.equal(ids.long(), logits.argmax(-1))


def test_a_broken_row_leaves_the_others_alone(isa: str, threads: int) -> None:
    logits = random(4, 1000)
    for filters in FILTERS:
        clean = draw(logits, [0, 1, 2, 3], isa, threads, **filters)[1]
        broken = logits.clone()
        broken[1], broken[2, ::3], broken[2, 1] = math.nan, math.nan, math.inf
        ids = draw(broken, [0, 1, 2, 3], isa, threads, **filters)[1]
        assert torch.equal(ids[[0, 3]], clean[[0, 3]])
        assert bool((ids >= -1).all()) and bool((ids < 1000).all())
