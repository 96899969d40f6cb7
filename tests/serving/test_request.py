"""A request's life: waiting for it, its tokens as they come, its end before its end."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import decoding
from decoding.generation import stop_strings
from decoding.models.weights.dtypes import as_tensor
from decoding.serving import planning
from tests.serving.engines import assert_idle, assert_same, engine, tight_engine
from tests.support.random_models import ours

names = pytest.mark.parametrize("name", ["marian", "gpt2-pad"])
SEARCHES: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5},
    {"do_sample": True, "seed": 5, "num_return_sequences": 3},
    {"num_beams": 4},
    {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0},
    {"num_beams": 3, "do_sample": True, "seed": 3, "temperature": 0.3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
]
LONG: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 400, "eos_token_id": None}
SHORT: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 5, "eos_token_id": None}


@pytest.fixture(scope="module")
def demo() -> decoding.Model:
    """A model whose requests last."""
    return decoding.load("demo", device="cpu", dtype="float32", threads=1)


@pytest.fixture(scope="module")
def long(demo: decoding.Model) -> Iterator[decoding.Engine]:
    with decoding.Engine(demo) as engine:
        yield engine


def tokens_of(name: str, device: str, **options: Any) -> list[list[int]]:
    """What generate() finds, without prompts and fill."""
    found = ours(name, device).generate([[12, 13, 14]], return_dict_in_generate=True, **options)
    width = found.sequences.shape[1] - int(found.lengths.max())
    rows = zip(found.sequences.tolist(), found.lengths.tolist(), strict=True)
    return [row[width : width + n] for row, n in rows]


def test_a_request_keeps_the_table_of_its_stop_strings(demo: decoding.Model) -> None:
    """Only some of them are kept for requests to come, and others may have gone when it runs."""
    with decoding.Engine(demo, max_requests=1) as engine:
        options: dict[str, Any] = {"stop_strings": ["qqq"], **SHORT}
        expected = engine.submit([5, 6, 7], **options).result(60)  # to make a table takes long
        running = engine.submit([5, 6, 7], **LONG)
        waiting = engine.submit([5, 6, 7], **options)
        _, kept = stop_strings._cache.popitem()
        table = weakref.ref(kept.table.table)
        del kept
        assert table() is not None
        assert not waiting.done
        running.cancel()
        assert torch.equal(waiting.result(60), expected)
        until = time.monotonic() + 60
        while table() is not None and time.monotonic() < until:
            engine.submit([5], **SHORT).result(60)
        assert table() is None


@names
@pytest.mark.parametrize("search", SEARCHES)
def test_streams_add_up_to_the_result(name: str, search: dict[str, Any], device: str) -> None:
    options = {"max_new_tokens": 12, **search}
    expected = tokens_of(name, device, **options)
    request = engine(name, device).submit([12, 13, 14], stream=True, **options)
    told: list[list[int]] = [[] for _ in expected]
    pieces = 0
    for new in request:
        pieces += 1
        assert len(new) == len(expected) and any(new)
        for row, tokens in zip(told, new, strict=True):
            row += tokens
    assert told == expected and request.done
    assert list(map(len, told)) == [len(row) for row in expected]
    at_once = 1 if device == "cpu" else 3  # a GPU runs two steps ahead of the host
    assert pieces > 1 or "num_beams" in search or max(map(len, expected)) <= at_once
    alone = ours(name, device).generate([[12, 13, 14]], **options)
    assert_same(request.result(), alone, device)


@names
def test_beams_tell_what_they_agree_on(name: str, device: str) -> None:
    """Before the end, as Model.stream() does."""
    early = 0
    for first, beams in itertools.product(range(10, 20), (2, 3, 8)):
        options: dict[str, Any] = {"max_new_tokens": 20, "min_new_tokens": 12, "num_beams": beams}
        if first % 3 == 1:  # rows end early, and others go on beside them
            options |= {"min_new_tokens": 0, "eos_token_id": [*range(3, 30, 4)]}
        if first % 3 == 2:  # one row is real, and the others repeat it
            vocab = ours(name).spec.decoder.vocab
            options["suppress_tokens"] = [id for id in range(vocab) if id != 20]
        pieces = list(engine(name, device).submit([first, 14], stream=True, **options))
        found = ours(name, device).generate([[first, 14]], **options)
        prompt = found.shape[1] - sum(len(new) for [new] in pieces)
        assert [token for [new] in pieces for token in new] == found[0, prompt:].tolist()
        if device == "cpu":  # a GPU is read once in a while
            expected = list(ours(name).stream([[first, 14]], **options))
            assert pieces[:-1] == expected[: len(pieces) - 1]
            assert len(expected) - len(pieces) in (0, 1), "what is left may come in two pieces"
        early += len(pieces) > 1
    assert early > 5, "no token was told before the end"


@names
def test_memory_that_held_other_things(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams read what their searches wrote alone, to the last step of beams that end."""

    def poisoned(*given: Any) -> Any:
        block = planning.allocated(*given)
        as_tensor(block).fill_(255)  # as int32: -1
        return block

    monkeypatch.setattr("decoding.serving.engine.allocated", poisoned)
    with decoding.Engine(ours(name, device), max_requests=16, memory=64 << 20) as engine:
        for first, beams in itertools.product(range(10, 20), (2, 3)):
            options: dict[str, Any] = {"max_new_tokens": 20, "num_beams": beams}
            request = engine.submit([12, 13, 14, first], stream=True, **options)
            told = [token for [new] in request for token in new]
            alone = ours(name, device).generate([[12, 13, 14, first]], **options)
            assert_same(request.result(), alone, device)
            assert told == alone[0, alone.shape[1] - len(told) :].tolist()


def test_without_stream_all_tokens_come_at_the_end() -> None:
    for search in SEARCHES:
        options = {"max_new_tokens": 12, **search}
        [told] = engine("gpt2-pad").submit([12, 13, 14], **options)
        assert told == tokens_of("gpt2-pad", "cpu", **options)
    options = {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2}
    assert list(engine("gpt2-pad").submit([12, 13, 14], **options)) == [
        tokens_of("gpt2-pad", "cpu", **options)
    ]


def test_several_readers_each_from_the_first_token() -> None:
    request = engine("gpt2").submit([5], stream=True, max_new_tokens=9, eos_token_id=None)
    one, other = iter(request), iter(request)
    first = next(one)
    assert [first, *one] == list(other) == list(request)
    assert sum(len(new) for [new] in request) == 9


def test_a_reader_that_leaves_holds_nobody_up(long: decoding.Engine) -> None:
    left = long.submit([5, 6, 0], stream=True, **LONG)
    assert next(iter(left))
    others = [long.submit([5, 6, i], **SHORT) for i in range(7, 17)]
    assert all(request.result(60).shape == (1, 6) for request in others)
    assert left.result(60).shape == (1, 401)


def test_the_first_tokens_come_before_the_last(long: decoding.Engine) -> None:
    request = long.submit([5, 6, 0], stream=True, **LONG)
    assert next(iter(request)) and not request.done
    request.cancel()


def test_waiting_for_a_while(long: decoding.Engine) -> None:
    request = long.submit([5, 6, 0], **LONG)
    with pytest.raises(TimeoutError, match="not done after 0.001 seconds, and goes on"):
        request.result(timeout=0.001)
    assert not request.done and "running" in repr(request)
    assert request.result(timeout=60) is request.result() and "done" in repr(request)


@pytest.mark.parametrize("search", [{}, {"num_beams": 4}, {"do_sample": True, "seed": 1}])
def test_cancelled(search: dict[str, Any], long: decoding.Engine, demo: decoding.Model) -> None:
    request = long.submit([5, 6, 0], stream=True, **(LONG | search))
    reader = iter(request)
    if not search:
        assert next(reader)
    request.cancel()
    request.cancel()
    for _ in range(2):
        with pytest.raises(decoding.Cancelled, match="the request was cancelled"):
            request.result(60)
    assert request.done
    with pytest.raises(decoding.Cancelled):
        list(reader)
    with pytest.raises(decoding.Cancelled):
        list(request)
    request.cancel()
    expected = demo.generate([[5, 6, 0]], **SHORT)
    assert_same(long.submit([5, 6, 0], **SHORT).result(60), expected)
    assert_idle(long)


def test_cancelling_what_has_ended_changes_nothing() -> None:
    request = engine("gpt2").submit([5], max_new_tokens=5)
    expected = request.result()
    request.cancel()
    assert request.result() is expected


def test_cancelled_at_any_step(device: str) -> None:
    """Or ended: whoever takes the pages over finds what it finds alone."""
    model = ours("gpt2", device)
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": None}
    searches: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"do_sample": True, "seed": 2}]
    with tight_engine(model, rows=8, pages=12) as tight:
        for search, after in itertools.product(searches, range(8)):
            first = tight.submit([5, 6, 7], stream=True, **options, **search)
            next(itertools.islice(first, after, None), None)
            first.cancel()
            rows = [[8 + after, i] for i in range(4, 9)]
            requests = [tight.submit(row, **options, **search) for row in rows]
            for row, request in zip(rows, requests, strict=True):
                alone = model.generate([row], **options, **search)
                assert_same(request.result(60), alone, device)
        assert_idle(tight)


def test_deadlines(long: decoding.Engine) -> None:
    late = long.submit([5, 6, 0], deadline=0.01, stream=True, **LONG)
    with pytest.raises(TimeoutError, match="within its deadline of 0.01 seconds"):
        late.result(60)
    assert late.done
    with pytest.raises(TimeoutError, match="deadline"):
        list(late)
    early = long.submit([5, 6, 0], deadline=60, **SHORT)
    assert early.result().shape == (1, 6)
    assert_idle(long)


def test_a_deadline_ends_what_has_not_begun(demo: decoding.Model) -> None:
    with decoding.Engine(demo, max_requests=1) as single:
        running = single.submit([5, 6, 0], **LONG)
        waiting = single.submit([5, 6, 0], deadline=0.01, **SHORT)
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="deadline"):
            waiting.result(60)
        assert not running.done and time.monotonic() - started < 30
        running.cancel()


def test_higher_priorities_go_first(demo: decoding.Model) -> None:
    with decoding.Engine(demo, max_requests=1) as single:
        running = single.submit([5, 6, 0], stream=True, **LONG)
        assert next(iter(running))
        low = single.submit([5, 6, 0], **LONG)
        usual = single.submit([5, 6, 0], priority=1, **(LONG | {"max_new_tokens": 200}))
        high = single.submit([5, 6, 0], priority=2, **SHORT)
        assert high.result(60).shape == (1, 6)
        assert running.done and not low.done
        usual.result(60)
        assert not low.done
        low.cancel()


def test_tokens_of_a_model_with_beams_as_default(demo: decoding.Model) -> None:
    with decoding.Engine(demo) as engine:
        request = engine.submit("Guten Morgen!", stream=True)
        tokens = [token for [new] in request for token in new]
        expected = demo.generate("Guten Morgen!")
        assert torch.equal(request.result(), expected) and tokens == expected[0, 1:].tolist()
