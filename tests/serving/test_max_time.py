"""max_time on an engine: a request ends with what it has, beside others that go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import decoding
from tests.serving.engines import FULL, assert_idle, assert_same, engine, tight_engine
from tests.serving.test_engine import SEARCHES, sentences
from tests.support.random_models import ours

names = pytest.mark.parametrize("name", ["marian", "gpt2"])
LONG: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 400, "eos_token_id": None}


def assert_begins(found: torch.Tensor, whole: torch.Tensor) -> None:
    assert torch.equal(found, whole[:, : found.shape[1]])


@names
def test_no_time_at_all(name: str, device: str) -> None:
    """One token, as in generate(), of every search, while others run."""
    rows = sentences(len(SEARCHES))
    options: dict[str, Any] = {"max_new_tokens": 12, "max_time": 0.0}
    others = [engine(name, device).submit(row, max_new_tokens=12) for row in rows]
    asked = [
        engine(name, device).submit(row, **options, **search, **FULL)
        for row, search in zip(rows, SEARCHES, strict=True)
    ]
    for row, search, request in zip(rows, SEARCHES, asked, strict=True):
        alone = ours(name, device).generate([row], **options, **search, **FULL)
        assert_same(request.result(), alone, device)
        assert alone.lengths.tolist() == [1] * len(alone.lengths)
    for row, request in zip(rows, others, strict=True):
        assert_same(request.result(), ours(name, device).generate([row], max_new_tokens=12), device)
    assert_idle(engine(name, device))


def test_time_enough_changes_nothing(device: str) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "num_beams": 3}
    found = engine("gpt2", device).submit([5, 6], max_time=1e6, **options).result()
    assert_same(found, ours("gpt2", device).generate([[5, 6]], **options), device)


def test_it_ends_with_what_it_has() -> None:
    """A stream, too; one that waits for a row until then gets one token."""
    model = decoding.load("demo", device="cpu", dtype="float32", threads=1)
    whole = model.generate([[5, 6, 0]], **LONG)
    with decoding.Engine(model, max_requests=1) as few:
        stream = few.submit([5, 6, 0], max_time=0.02, stream=True, **LONG)
        told = [token for [new] in stream for token in new]
        assert stream.result()[0, 1:].tolist() == told and 1 <= len(told) < 400
        assert_begins(stream.result(), whole)
        first = few.submit([5, 6, 0], stream=True, **LONG)
        assert next(iter(first))
        late = few.submit([5, 6, 0], max_time=0.001, **LONG)
        assert torch.equal(late.result(60), whole[:, :2])
        assert torch.equal(first.result(), whole)
        assert_idle(few)


def test_time_is_up_for_some_that_are_swapped_out(device: str) -> None:
    model, rows = ours("gpt2-long", device), sentences(24)
    options: dict[str, Any] = {"eos_token_id": None, "max_new_tokens": 100}
    expected = [model.generate([row], **options) for row in rows]
    with tight_engine(model, rows=24, pages=40, overcommit=True) as swapping:
        asked = [
            swapping.submit(row, max_time=0.001 * i, **options)  # some soon, some never
            for i, row in enumerate(rows)
        ]
        for request, whole in zip(asked, expected, strict=True):
            assert_begins(request.result(60), whole)
        assert_idle(swapping)


def test_calls_of_many_sentences_share_steps(device: str) -> None:
    model, rows = ours("marian", device), sentences(40)
    options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 12, "many": True}
    for seconds in (0.0, 1e6):
        call = model.prepare(rows, max_time=seconds, **options, **FULL)
        assert call.is_continuous
        assert (int(call.run().lengths.max()) == 1) == (seconds == 0)
