"""filter_scores against transformers' own warpers, in its order, and against the reference."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import generation

from decoding import _C, reference
from decoding import _kernels as kernels
from tests.conftest import assert_same_bits, random

WHERE = [*_C.isas(), pytest.param("cuda", marks=pytest.mark.gpu)]
# None of them lies where rounding decides on a row that somebody would write by hand.
OPTIONS: dict[str, list[Any]] = {
    "temperature": [0.613, 1.0, 2.517],
    "top_h": [0.0, 0.113, 0.517, 0.9091],
    "top_k": [0, 1, 7, 50, 10**6],
    "top_p": [0.0513, 0.5117, 0.9173, 0.98971, 1.0],
    "min_p": [0.0, 0.0113, 0.1171, 0.7919],
    "typical_p": [0.1019, 0.5117, 0.9173, 1.0],
    "epsilon": [0.0, 3.17e-4, 0.0171, 0.9119],
    "eta": [0.0, 3.17e-4, 0.0171, 0.9119],
}
KINDS = ["soft", "sharp", "tied", "peaked", "flat", "few"]
some_options = st.fixed_dictionaries(
    {}, optional={k: st.sampled_from(v) for k, v in OPTIONS.items()}
)


def made(kind: str, rows: int, vocab: int, seed: int = 0) -> Tensor:
    """Scores of every sort; in those that are random no two differ by rounding alone."""
    x = random(rows, vocab, seed=seed)
    if kind == "sharp":
        return x * 5
    if kind == "tied":
        return (x * 2).round() / 2 + 0.0  # no -0, which sorts anywhere
    if kind == "peaked":
        x[:, vocab // 2] += 7  # much more, and float32 knows nothing of the rest
    if kind == "flat":
        return torch.full_like(x, -3.5)
    if kind == "few":
        out = torch.rand(rows, vocab, generator=torch.Generator().manual_seed(seed)) < 0.97
        out[:, seed % vocab] = False
        x[out] = -math.inf
    return x


def warped(
    scores: Tensor,
    where: str,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    threads: int = 1,
    **shared: Any,
) -> Tensor:
    """All rows as beams of one sentence."""
    x = scores.to("cuda" if where == "cuda" else "cpu", copy=True)
    own: dict[str, Any] = {"temperature": [temperature], "top_k": [top_k], "top_p": [top_p]}
    if "keep" in shared:
        shared["min_tokens"] = shared.pop("keep")
    kernels.filter_scores(x, **shared, **own, sentence_ids=[0], isa=where, threads=threads)
    return x.cpu()


def theirs(scores: Tensor, *, keep: int, **options: Any) -> Tensor:
    """By transformers."""
    some: dict[str, Any] = {"min_tokens_to_keep": keep}
    made_by = {
        "temperature": generation.TemperatureLogitsWarper,
        "top_h": generation.TopHLogitsWarper,
        "top_k": lambda k: generation.TopKLogitsWarper(k, **some),
        "top_p": lambda p: generation.TopPLogitsWarper(p, **some),
        "min_p": lambda p: generation.MinPLogitsWarper(p, **some),
        "typical_p": lambda p: generation.TypicalLogitsWarper(p, **some),
        "epsilon": lambda e: generation.EpsilonLogitsWarper(e, **some),
        "eta": lambda e: generation.EtaLogitsWarper(e, **some),
    }
    off = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0}
    warpers = generation.LogitsProcessorList(
        make(options[name])
        for name, make in made_by.items()
        if options.get(name, 0) not in (0, off.get(name, 0))
    )
    return warpers(torch.zeros(len(scores), 0, dtype=torch.long), scores)


def by_reference(scores: Tensor, **options: Any) -> Tensor:
    rounded: dict[str, Any] = {
        k: torch.tensor(v).tolist() for k, v in options.items()
    }  # as the engine has them
    return torch.stack([reference.filtered(row, **rounded) for row in scores])


def assert_same_sets(ours: Tensor, expected: Tensor) -> None:
    """Of values: which of equal tokens is cut is nobody's business."""
    assert_same_bits(ours.sort(dim=1).values, expected.sort(dim=1).values)


@settings(max_examples=400)
@given(
    isa=st.sampled_from(_C.isas()),
    kind=st.sampled_from(KINDS),
    vocab=st.sampled_from([1, 2, 5, 99, 101, 128, 129, 1000, 5003]),
    keep=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 2**31 - 1),
    options=some_options,
)
def test_compositions(
    isa: str, kind: str, vocab: int, keep: int, seed: int, options: dict[str, Any]
) -> None:
    scores = made(kind, 2, vocab, seed)
    ours = warped(scores, isa, keep=keep, **options)
    assert_same_sets(ours, theirs(scores, keep=keep, **options))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_each_alone(where: str, kind: str) -> None:
    """And by id: lower ones stay where equals are cut."""
    scores = made(kind, 3, 2003)
    for name, values in OPTIONS.items():
        for value in values:
            for keep in (1, 3):
                ours = warped(scores, where, keep=keep, **{name: value})
                assert_same_sets(ours, theirs(scores, keep=keep, **{name: value}))
                exact = by_reference(scores, keep=keep, **{name: value})
                assert torch.equal(ours.isinf(), exact.isinf()), (name, value, keep)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_large_vocabularies(where: str, kind: str) -> None:
    """Where the reference adds up 60,000 probabilities in float32 it may be a few tokens off."""
    for name in ("top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon", "eta"):
        for value in OPTIONS[name][1:4]:
            ours = warped(large(kind), where, **{name: value})
            removed, wanted = large_references(kind, name, value)
            assert torch.equal(ours.isinf(), removed)
            kept = ours.isfinite().sum(1)
            assert ((kept - wanted).abs() <= 1 + wanted // 1000).all(), (name, value)


@cache
def large(kind: str) -> Tensor:
    return made(kind, 2, 60000)


@cache
def large_references(kind: str, name: str, value: float) -> tuple[Tensor, Tensor]:
    """What the reference removes, and how many tokens transformers keeps in each row."""
    removed = by_reference(large(kind), **{name: value}).isinf()
    return removed, theirs(large(kind), keep=1, **{name: value}).isfinite().sum(1)


@pytest.mark.parametrize("where", WHERE)
def test_boundaries_that_rounding_spares(where: str) -> None:
    """A quarter of four equals is exact in any precision."""
    flat = torch.zeros(1, 4)
    cases: list[tuple[dict[str, Any], int]] = [
        ({"top_p": 0.25}, 1),
        ({"top_p": 0.75}, 3),
        ({"epsilon": 0.25}, 4),
        ({"min_p": 1.0}, 4),
        ({"typical_p": 0.25}, 4),
        ({"top_k": 2}, 4),
        ({"top_h": 1.0}, 4),
    ]
    for options, kept in cases:
        assert int(warped(flat, where, **options).isfinite().sum()) == kept, options
    two = torch.tensor([[0.0, 0.0, -1.0, -1.0]])
    assert int(warped(two, where, min_p=1.0).isfinite().sum()) == 2


@pytest.mark.parametrize("where", WHERE)
def test_ties_at_the_mth(where: str) -> None:
    scores = torch.full((1, 300), -1.0)
    scores[0, 7] = 3.0
    cases: list[tuple[dict[str, Any], int]] = [
        ({"min_p": 0.9}, 3),
        ({"top_p": 0.01}, 3),
        ({"epsilon": 0.9}, 300),  # ties of the m-th stay
        ({"eta": 0.9}, 300),
        ({"top_k": 1}, 300),
    ]
    for options, kept in cases:
        ours = warped(scores, where, keep=3, **options)[0]
        assert int(ours.isfinite().sum()) == kept, options
        if kept == 3:
            assert ours.isfinite().nonzero().flatten().tolist() == [0, 1, 7]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_that_are_broken_or_empty(where: str, name: str) -> None:
    """They leave the others alone; of nothing there remains nothing."""
    scores = made("soft", 5, 1000)
    options = {name: OPTIONS[name][1], "keep": 2}
    clean = warped(scores, where, **options)
    scores[1], scores[2], scores[3, ::3], scores[3, 1] = -math.inf, math.nan, math.nan, math.inf
    ours = warped(scores, where, **options)
    assert_same_bits(ours[[0, 4]], clean[[0, 4]])
    assert (ours[1] == -math.inf).all()


@pytest.mark.parametrize("where", WHERE)
def test_sentences_have_their_own(where: str, threads: int) -> None:
    """Temperature, top_k and top_p of sentences 3 and 1, of two rows each."""
    scores = made("soft", 4, 777)
    own: dict[str, Any] = {
        "temperature": [9.0, 0.5, 9.0, 2.0],
        "top_k": [1, 30, 1, 0],
        "top_p": [0.1, 1.0, 0.1, 0.8],
    }
    x = scores.to("cuda" if where == "cuda" else "cpu", copy=True)
    kernels.filter_scores(x, typical_p=0.9, **own, sentence_ids=[3, 1], isa=where, threads=threads)
    for rows, b in ((slice(0, 2), 3), (slice(2, 4), 1)):
        mine = {name: values[b] for name, values in own.items()}
        assert_same_bits(x.cpu()[rows], warped(scores[rows], where, typical_p=0.9, **mine))
