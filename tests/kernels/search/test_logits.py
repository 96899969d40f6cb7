"""scan_logits, ban_tokens, force_tokens and renormalize against torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels
from tests.conftest import assert_same_bits, assert_within_torch, random

VOCABS = [1, 2, 15, 16, 17, 127, 128, 129, 1000, 32000]
GROUP = 128


def log_sum_exp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def grouped(x: Tensor) -> Tensor:
    """[rows, V] as [rows, groups, 128], with -inf behind the last column."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP), value=-math.inf)
    return padded.view(len(x), -1, GROUP)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (30.0, 0.0), (1.0, -200.0)])
def test_equals_torch(isa: str, threads: int, vocab: int, scale: float, offset: float) -> None:
    x = random(3, vocab) * scale + offset
    maxima, sums, lse = kernels.scan_logits(x, isa=isa, threads=threads)
    assert_same_bits(maxima, grouped(x).amax(-1))
    assert_within_torch(log_sum_exp, lse, x)
    assert_within_torch(log_sum_exp, maxima + sums.log(), grouped(x))


@pytest.mark.parametrize("vocab", VOCABS)
def test_a_row_does_not_depend_on_its_batch_or_the_threads(
    isa: str, threads: int, vocab: int
) -> None:
    x = random(5, vocab)
    x[1] = math.nan
    together = kernels.scan_logits(x, isa=isa, threads=threads)
    for row in (0, 2, 4):
        alone = kernels.scan_logits(x[row : row + 1].clone(), isa=isa, threads=1)
        for all_rows, one in zip(together, alone, strict=True):
            assert_same_bits(all_rows[row : row + 1], one)


@given(
    st.sampled_from(_C.isas()),
    st.sampled_from(VOCABS),
    st.lists(
        st.tuples(st.integers(0, 31999), st.sampled_from([math.nan, math.inf, -math.inf, 3e38])),
        max_size=4,
    ),
    st.booleans(),
)
def test_what_is_not_finite_shows(
    isa: str, vocab: int, specials: list[tuple[int, float]], empty: bool
) -> None:
    x = torch.full((1, vocab), -math.inf) if empty else random(1, vocab)
    for place, value in specials:
        x[0, place % vocab] = value
    lse = float(kernels.scan_logits(x, isa=isa, threads=2)[2])
    broken = bool(x.isnan().any()) or bool((x == math.inf).any())
    assert (math.isnan(lse) or lse == math.inf) == broken
    assert (lse == -math.inf) == bool((x == -math.inf).all())


@pytest.mark.parametrize("vocab", VOCABS)
def test_banned_tokens(isa: str, threads: int, vocab: int) -> None:
    x = random(3, vocab)
    ids = [0, vocab - 1, vocab // 2, vocab // 2]
    masked = x.clone()
    masked[:, ids] = -math.inf
    ours = x.clone()
    maxima, sums, lse = kernels.ban_tokens(ours, ids, isa=isa, threads=threads)
    assert_same_bits(ours, masked)
    assert_same_bits(lse, kernels.scan_logits(x, isa=isa, threads=1)[2])
    expected = kernels.scan_logits(masked, isa=isa, threads=1)
    assert_same_bits(maxima, expected[0])
    assert_same_bits(sums, expected[1])


@pytest.mark.parametrize("vocab", VOCABS)
def test_forced_tokens(isa: str, threads: int, vocab: int) -> None:
    x = random(4, vocab)
    x[1, 0], x[2], x[3, -1] = math.nan, -math.inf, math.inf
    before = kernels.scan_logits(x, isa=isa, threads=1)[2]
    ids = [vocab - 1, 0]
    forced = torch.full_like(x, -math.inf)
    forced[:, ids] = 0.0
    maxima, sums, lse = kernels.force_tokens(x, ids, isa=isa, threads=threads)
    assert_same_bits(x, forced)
    expected = kernels.scan_logits(forced, isa=isa, threads=1)
    assert_same_bits(maxima, expected[0])
    assert_same_bits(sums, expected[1])
    assert lse[0] == 0.0
    assert_same_bits(lse[1:], before[1:])


@pytest.mark.parametrize("vocab", [2, 129, 1000])
def test_sentences_at_steps_of_their_own(isa: str, threads: int, vocab: int) -> None:
    """The first is forced to begin, the second must not end, the third is free, the last ends."""
    rules: dict[str, Any] = {"eos": [vocab - 1], "min_new": 2, "forced_first": 0, "max_new": 4}
    x, how = random(8, vocab), {"isa": isa, "threads": threads}
    together = x.clone()
    found = kernels.constrain(together, **rules, steps=[1, 2, 3, 4], **how)
    for i, part in enumerate(x.split(2)):
        mine, alone = slice(2 * i, 2 * i + 2), part.clone()
        expected = kernels.constrain(alone, **rules, steps=[i + 1], **how)
        assert_same_bits(together[mine], alone)
        for ours, theirs in zip(found, expected, strict=True):
            assert_same_bits(ours[mine], theirs)
    assert (together[:2, 1:] == -math.inf).all() and (together[:2, 0] == 0).all()
    assert (together[2:4, -1] == -math.inf).all() and torch.equal(together[4:6], x[4:6])
    assert (together[6:, :-1] == -math.inf).all() and (together[6:, -1] == 0).all()


@pytest.mark.parametrize("vocab", [2, 129, 1000])
def test_renormalized(isa: str, threads: int, vocab: int) -> None:
    x = random(4, vocab)
    x[1, 0], x[2, 1:] = math.nan, -math.inf
    raw = kernels.scan_logits(x, isa=isa, threads=1)[2]
    lse = kernels.renormalize(x, [0], isa=isa, threads=threads)[2]
    assert_within_torch(log_sum_exp, lse[[0, 3]], x[[0, 3]])
    assert bool((lse[[0, 3]] < raw[[0, 3]]).all())
    assert_same_bits(lse[1:3], raw[1:3])  # broken, and nothing left
