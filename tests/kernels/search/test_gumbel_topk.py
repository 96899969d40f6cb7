"""draw_candidates against the reference's noise, and against draws without replacement."""

from __future__ import annotations

import itertools
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
from decoding.reference import FILL_IN
from tests.conftest import random

WHERE = [*_C.isas(), pytest.param("cuda", marks=pytest.mark.gpu)]


def draw(
    scores: Tensor, sums: Tensor, m: int, where: str, *, threads: int = 1, **own: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(scores, ids, keys); by default of one sentence whose rows have words from 0 on."""
    own = {"seed": [1], "random_first": [0], "sentence_ids": [0], **own}
    own.setdefault("steps", [1] * len(own["sentence_ids"]))
    device = "cuda" if where == "cuda" else "cpu"
    drawn = kernels.sample_candidates(
        scores.to(device), sums.to(device), m, **own, isa=where, threads=threads
    )
    values, ids, keys = (tensor.cpu() for tensor in drawn)
    return values, ids, keys


def expected(x: Tensor, total: float, m: int, **noise: int) -> tuple[Tensor, Tensor]:
    """(ids, keys) of a row, the lower id first among equal keys; -1 behind the last."""
    keys = (x + total).double() + reference.gumbel(len(x), **noise)
    keys = keys.float().where(x.isfinite(), -math.inf)
    keys, ids = keys.sort(descending=True, stable=True)
    missing = torch.full((max(m - len(x), 0),), -math.inf)
    keys, ids = torch.cat([keys, missing])[:m], torch.cat([ids, missing.long()])[:m]
    return ids.where(keys.isfinite(), -1), keys


@settings(max_examples=200)
@given(
    isa=st.sampled_from(_C.isas()),
    threads=st.sampled_from([1, 2, 3]),
    vocab=st.sampled_from([1, 2, 127, 128, 129, 1000, 5001]),
    m=st.sampled_from([1, 2, 6, 40]),
    sharpness=st.sampled_from([0.0, 1.0, 3.0, 20.0]),
    banned=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(1, 2**31 - 1),
)
def test_draws_equal_the_reference(
    isa: str,
    threads: int,
    vocab: int,
    m: int,
    sharpness: float,
    banned: float,
    seed: int,
    step: int,
) -> None:
    check(isa, threads, vocab, m, sharpness, banned, seed, step)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [1, 129, 5001, 32000])
@pytest.mark.parametrize("sharpness", [0.0, 3.0])
@pytest.mark.parametrize("banned", [0.0, 0.99])
def test_draws_on_cuda(vocab: int, sharpness: float, banned: float) -> None:
    for m in (1, 8, 40):
        check("cuda", 1, vocab, m, sharpness, banned, seed=2**63 + m, step=m)


def check(
    where: str,
    threads: int,
    vocab: int,
    m: int,
    sharpness: float,
    banned: float,
    seed: int,
    step: int,
) -> None:
    """Three beams of sentences 2 and 0, the last of each a fill-in, at steps of their own."""
    scores = (random(6, vocab, seed=seed % 1000) * sharpness).log_softmax(-1)
    generator = torch.Generator().manual_seed(seed)
    scores[torch.rand(6, vocab, generator=generator) < banned] = -math.inf
    sums = torch.tensor([-1.0, -2.5, FILL_IN, 7.0, 7.0, 7.0, -20.0, 0.0, FILL_IN])
    own: dict[str, Any] = {"seed": [seed, 7, seed // 2], "random_first": [0, 9, 2**31 - 5]}
    own |= {"sentence_ids": [2, 0], "steps": [step, step // 2 + 1]}
    values, ids, keys = draw(scores, sums, m, where, threads=threads, **own)
    for row, (sentence, beam) in enumerate(itertools.product((2, 0), range(3))):
        step = own["steps"][row // 3]
        noise = {"seed": own["seed"][sentence], "row": own["random_first"][sentence] + beam}
        wanted = expected(scores[row], float(sums[sentence * 3 + beam]), m, step=step, **noise)
        assert torch.equal(ids[row].long(), wanted[0])
        torch.testing.assert_close(keys[row], wanted[1], rtol=2e-7, atol=2e-7)
        found = ids[row] >= 0
        assert torch.equal(values[row][found], scores[row][ids[row][found].long()])
        assert (values[row][~found] == -math.inf).all()


@pytest.mark.parametrize("where", WHERE)
def test_fill_ins_come_last_and_in_order(where: str) -> None:
    """Noise is lost beside -1e9: the lower id first among equals, as without noise."""
    scores = torch.zeros(2, 300)
    values, ids, keys = draw(scores, torch.tensor([0.0, FILL_IN]), 5, where)
    assert ids[1].tolist() == [0, 1, 2, 3, 4]
    assert keys[0].min() > keys[1].max() == FILL_IN


@pytest.mark.parametrize("where", WHERE)
def test_distribution_without_replacement(where: str) -> None:
    """Pairs from the rows of two beams, in their order, 60,000 times."""
    count, vocab, beams = 60000, 4, 2
    scores = torch.tensor([[-0.5, -1.5, -2.0, -math.inf], [-1.0, -0.7, -3.0, -2.2]])
    sums = torch.tensor([-0.3, -1.1])
    total = (scores + sums[:, None]).flatten()
    own: dict[str, Any] = {"seed": [5] * count, "random_first": [2 * i for i in range(count)]}
    own["sentence_ids"] = list(range(count))
    _, ids, keys = draw(scores.repeat(count, 1), sums.repeat(count), 2, where, **own)
    place = ids.view(count, beams, 2) + torch.arange(beams)[:, None] * vocab
    first, second = keys.view(count, -1).topk(2).indices.unbind(1)
    place = place.view(count, -1).long()
    pairs = place.gather(1, first[:, None]) * 8 + place.gather(1, second[:, None])
    drawn = pairs.flatten().bincount(minlength=64).view(8, 8)
    p = total.double().softmax(-1)
    pair = p[:, None] * p / (1 - p)[:, None]  # multinomial without replacement
    pair.fill_diagonal_(0.0)
    assert not drawn[pair == 0].any()
    possible = pair > 0
    assert chisquare(drawn[possible].numpy(), (pair[possible] * count).numpy()).pvalue > 1e-3


def test_draws_do_not_depend_on_batch_or_threads(isa: str, threads: int) -> None:
    scores, sums = random(6, 1000) * 2, random(6)
    own: dict[str, Any] = {"seed": [1, 2, 3], "random_first": [4, 0, 9]}
    together = draw(scores, sums, 5, isa, threads=threads, **own, sentence_ids=[0, 1, 2])
    for b in range(3):
        mine = scores[2 * b : 2 * b + 2]
        alone = draw(mine, sums, 5, isa, threads=threads, **own, sentence_ids=[b])
        for ours, theirs in zip(alone, together, strict=True):
            assert torch.equal(ours, theirs[2 * b : 2 * b + 2])
