"""Requests that step alone: what generate() gives, beside requests that share steps."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import decoding
from tests.serving.engines import FULL, SICK, assert_idle, assert_same, engine, outcome, sick
from tests.serving.lives import stream_problems
from tests.serving.test_engine import sentences
from tests.support.random_models import ours

KEPT: dict[str, Any] = {"return_dict_in_generate": True}
SCORES: dict[str, Any] = KEPT | {"output_scores": True, "output_logits": True}
GREEDY: dict[str, Any] = {"max_new_tokens": 8, "eos_token_id": None}
LONG: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 400, "eos_token_id": None}
SHORT: dict[str, Any] = LONG | {"max_new_tokens": 20}
CONTRASTIVE: dict[str, Any] = {"penalty_alpha": 0.5, "top_k": 2}


def odd(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Bans even tokens."""
    scores[:, ::2] = -torch.inf
    return scores


def after_five(ids: torch.Tensor, scores: Any) -> torch.Tensor:
    return torch.full((len(ids),), ids.shape[1] >= 5)


# What steps alone, of all models; then of each kind alone.
ALONE: list[dict[str, Any]] = [
    {"penalty_alpha": 0.6, "top_k": 4},
    {"num_beams": 3, "force_words_ids": [[5], [7, 8]], "num_return_sequences": 2},
    SCORES,
    SCORES | {"num_beams": 3, "num_return_sequences": 2},
    KEPT | {"output_logits": True, "do_sample": True, "seed": 3, "num_return_sequences": 2},
    {"logits_processor": [odd], "num_beams": 2},
    {"stopping_criteria": [after_five], "do_sample": True, "seed": 4},
    {"prefix_allowed_tokens_fn": lambda item, row: [9, 10 + len(row)]},
    {"progress": lambda done, total: None, "num_beams": 2},
    {"cancel": threading.Event(), "do_sample": True, "seed": 5},
    {"penalty_alpha": 0.6, "top_k": 3, "max_time": 0.0},
]
OF_EACH: dict[str, list[dict[str, Any]]] = {
    "gpt2": [
        {"guidance_scale": 1.5},
        {"guidance_scale": 2.0, "num_beams": 2},
        {"guidance_scale": 1.2, "do_sample": True, "seed": 2, **SCORES},
    ],
    "marian": [
        {"num_beams": 3, "coverage_penalty": 0.4},
        KEPT | {"output_attentions": True},
        KEPT | {"output_attentions": True, "num_beams": 2},
    ],
}
names = pytest.mark.parametrize("name", ["marian", "gpt2"])


@pytest.fixture(scope="module")
def demo() -> decoding.Model:
    """A model whose requests last."""
    return decoding.load("demo", device="cpu", dtype="float32", threads=1)


@pytest.fixture
def long(demo: decoding.Model) -> Iterator[decoding.Engine]:
    with decoding.Engine(demo) as engine:
        yield engine


class Held:
    """A logits processor that holds its request in the first step until it is let go."""

    def __init__(self) -> None:
        self.reached, self.free = threading.Event(), threading.Event()

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.reached.set()
        assert self.free.wait(60)
        return scores


def same(found: Any, expected: Any, device: str) -> None:
    """With the scores, logits and attentions of each step."""
    if isinstance(expected, torch.Tensor):
        assert_same(found, expected, device)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other, device)
    else:
        assert found.keys() == expected.keys()
        same(found.to_tuple(), expected.to_tuple(), device)


@names
@pytest.mark.parametrize("stream", [False, True])
def test_each_gives_what_generate_gives(name: str, stream: bool, device: str) -> None:
    """All at once, with as many that share steps."""
    asked = [{**GREEDY, **FULL, **options} for options in ALONE + OF_EACH[name]]
    rows, running = sentences(len(asked)), engine(name, device)
    others = [running.submit(row, max_new_tokens=12, num_beams=2, **FULL) for row in rows]
    requests = []
    for row, options in zip(rows, asked, strict=True):
        certain = options.get("num_beams", 1) == 1 or "num_return_sequences" not in options
        requests.append(running.submit(row, stream=stream and certain, **options))
    for row, options, request in zip(rows, asked, requests, strict=True):
        alone = ours(name, device).generate([row], **options)
        same(request.result(60), alone, device)
        assert not stream_problems(request, alone)
        assert request.done
    for row, request in zip(rows, others, strict=True):
        alone = ours(name, device).generate([row], max_new_tokens=12, num_beams=2, **FULL)
        assert_same(request.result(60), alone, device)
    assert_idle(running)


def test_a_shortlist() -> None:
    few = decoding.Shortlist(np.full((60, 1), 9, np.int32), np.array([8, 11], np.int32), 60)
    found = engine("marian").submit([5, 6], shortlist=few, **GREEDY).result(60)
    assert_same(found, ours("marian").generate([[5, 6]], shortlist=few, **GREEDY))
    assert set(found[0, 1:].tolist()) <= {8, 9, 11}


def test_warnings_come_once_and_from_the_callers_line() -> None:
    options = {**CONTRASTIVE, "max_new_tokens": 2, "min_new_tokens": 5}
    with pytest.warns(UserWarning, match="no row can reach the minimum") as caught:
        request = engine("gpt2").submit([5, 6], **options)
        request.result(60)
    assert [warning.filename for warning in caught] == [__file__]


class Streamer:
    def __init__(self) -> None:
        self.got: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.got.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def test_a_streamer() -> None:
    one, other = Streamer(), Streamer()
    found = engine("gpt2").submit([5, 6], streamer=one, **GREEDY).result(60)
    assert_same(found, ours("gpt2").generate([[5, 6]], streamer=other, **GREEDY))
    assert one.got == other.got and one.ended == other.ended == 1
    with pytest.raises(ValueError, match="streamer and stream=True both deliver tokens"):
        engine("gpt2").submit([5, 6], streamer=one, stream=True, **GREEDY)


def test_tokens_come_before_the_end(long: decoding.Engine) -> None:
    held, options = Held(), LONG | {"max_new_tokens": 3}

    def third(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return held(ids, scores) if ids.shape[1] == 3 else scores

    request = long.submit([5, 6, 0], logits_processor=[third], stream=True, **options)
    reader = iter(request)
    assert [next(reader), next(reader)] and not request.done
    held.free.set()
    assert sum(len(new) for [new] in request) == 3 and len(list(reader)) == 1


def test_what_a_function_raises_is_its_own_requests() -> None:
    class Mine(Exception):
        pass

    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == 4:
            raise Mine("for a reason")
        return scores

    running = engine("gpt2")
    bad = running.submit([5, 6], logits_processor=[fails], stream=True, **GREEDY)
    good = [running.submit([5, 6], logits_processor=[odd], **GREEDY) for _ in range(2)]
    shared = running.submit([5, 6], **GREEDY)
    for _ in range(2):
        with pytest.raises(Mine, match="for a reason"):
            bad.result(60)
    told = []
    with pytest.raises(Mine):
        for [new] in bad:
            told += new
    assert len(told) == 2 and bad.done
    for request in good:
        alone = ours("gpt2").generate([[5, 6]], logits_processor=[odd], **GREEDY)
        assert_same(request.result(60), alone)
    assert_same(shared.result(60), ours("gpt2").generate([[5, 6]], **GREEDY))
    assert_idle(running)


def test_a_function_that_asks_its_own_model_stops_no_other_request() -> None:
    def asks(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        running.model.score([[5, 6]])
        return scores

    running = engine("gpt2")
    assert isinstance(running.model, decoding.Model)
    bad = running.submit([5, 6], logits_processor=[asks], **GREEDY)
    good = running.submit([5, 6], logits_processor=[odd], **GREEDY)
    with pytest.raises(decoding.Error, match="cannot ask the model that runs the call"):
        bad.result(60)
    assert_same(good.result(60), ours("gpt2").generate([[5, 6]], logits_processor=[odd], **GREEDY))
    assert_idle(running)


def test_a_fault_is_its_own_requests(device: str) -> None:
    model = sick("gpt2", device)
    with decoding.Engine(model) as half_sick:
        for row in ([5, SICK], [5, 6]):
            options = {"penalty_alpha": 0.6, "top_k": 3, "bad_words_ids": [[SICK]], **GREEDY}
            found = outcome(half_sick.submit(row, **options).result)
            alone = outcome(lambda: model.generate([row], **options))  # noqa: B023
            assert isinstance(found, decoding.Error) == (row[1] == SICK)
            assert_same(found, alone, device)


def test_higher_priorities_go_first(long: decoding.Engine) -> None:
    order: list[int] = []

    def noted(number: int) -> Callable[[Any, Any], Any]:
        def processor(ids: Any, scores: Any) -> Any:
            order.append(number)
            return scores

        return processor

    first, one = Held(), LONG | {"max_new_tokens": 1}
    requests = [long.submit([5], logits_processor=[first], **one)]
    assert first.reached.wait(60)
    for number, priority in enumerate([0, 1, 0, 7, 1]):
        processors = [noted(number)]
        requests.append(long.submit([5], logits_processor=processors, priority=priority, **one))
    stats = long.stats()
    assert (stats["running"], stats["waiting"]) == (1, 5)
    first.free.set()
    for request in requests:
        request.result(60)
    assert order == [3, 1, 4, 0, 2]
    assert_idle(long)


def test_cancelled_while_it_runs_and_while_it_waits(long: decoding.Engine) -> None:
    held = Held()
    running = long.submit([5], logits_processor=[held], **LONG)
    waiting = long.submit([5], **CONTRASTIVE, **LONG)
    after = long.submit([5], **CONTRASTIVE, **SHORT)
    assert held.reached.wait(60)
    waiting.cancel()
    assert waiting.done, "nobody has to wait for the one that runs"
    running.cancel()
    assert not running.done
    held.free.set()
    for request in (running, waiting):
        with pytest.raises(decoding.Cancelled, match="the request was cancelled"):
            request.result(60)
        request.cancel()
    assert after.result(60).shape == (1, 21)
    after.cancel()
    assert_idle(long)


def test_in_an_event_loop(long: decoding.Engine, demo: decoding.Model) -> None:
    """Tokens as they come, and a task that is cancelled while it waits."""

    async def main() -> None:
        stream = long.submit([5], stream=True, **CONTRASTIVE, **SHORT)
        told = [token async for [new] in stream for token in new]
        found = await stream
        assert found[0, 1:].tolist() == told
        assert_same(found, demo.generate([[5]], **CONTRASTIVE, **SHORT))
        held = Held()
        given_up = long.submit([5], logits_processor=[held], **LONG)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(given_up, 0.01)
        held.free.set()
        with pytest.raises(decoding.Cancelled):
            await given_up

    asyncio.run(main())
    assert_idle(long)


def test_deadlines(long: decoding.Engine) -> None:
    """Of one that waits, and of one that runs."""

    def slow(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return scores

    running = long.submit([5], logits_processor=[slow], **LONG)
    waiting = long.submit([5], logits_processor=[slow], deadline=0.1, **LONG)
    with pytest.raises(TimeoutError, match="within its deadline of 0.1 seconds"):
        waiting.result(60)
    assert not running.done
    running.cancel()
    running = long.submit([5], logits_processor=[slow], deadline=0.2, **LONG)
    with pytest.raises(TimeoutError, match="within its deadline of 0.2 seconds"):
        running.result(60)
    assert_idle(long)


def test_the_calls_own_event(long: decoding.Engine) -> None:
    cancel, held = threading.Event(), Held()
    request = long.submit([5], cancel=cancel, logits_processor=[held], **LONG)
    assert held.reached.wait(60)
    cancel.set()
    held.free.set()
    with pytest.raises(decoding.Cancelled, match="the event given as `cancel` is set"):
        request.result(60)


def test_many_sentences_at_once(device: str) -> None:
    """Engine.generate(), which a function or an option makes step alone."""
    rows = sentences(9)
    for options in ({"penalty_alpha": 0.6, "top_k": 3}, {"num_beams": 2, **SCORES}):
        given: dict[str, Any] = {"pad_token_id": 1, **GREEDY, **options}
        found = engine("gpt2", device).generate(rows, **given)
        same(found, ours("gpt2", device).generate(rows, **given), device)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(decoding.Cancelled):
        engine("gpt2", device).generate(rows, cancel=cancel, **given)
    assert_idle(engine("gpt2", device))


def test_limits_of_a_request() -> None:
    with decoding.Engine(ours("gpt2"), max_requests=8) as small:
        with pytest.raises(decoding.Error, match="beams=9, .* with penalty_alpha, top_k"):
            small.submit([5, 6], penalty_alpha=0.5, top_k=9, **GREEDY)


def test_a_block_waits_for_them(demo: decoding.Model) -> None:
    with decoding.Engine(demo) as engine:
        requests = [engine.submit([5], **CONTRASTIVE, **SHORT) for _ in range(3)]
    assert all(request.done and request.result().shape == (1, 21) for request in requests)


def test_closed_without_draining(demo: decoding.Model) -> None:
    engine, held = decoding.Engine(demo), Held()
    requests = [engine.submit([5], logits_processor=[held], stream=True, **LONG) for _ in range(3)]
    assert held.reached.wait(60)
    closing = threading.Thread(target=engine.close, kwargs={"drain": False})
    closing.start()
    with pytest.raises(decoding.Cancelled):  # the last, at once
        requests[-1].result(60)
    held.free.set()
    closing.join(60)
    assert not closing.is_alive() and all(request.done for request in requests)
    with pytest.raises(decoding.Cancelled):
        list(requests[0])
    with pytest.raises(ValueError, match="the engine is closed"):
        engine.submit([5], logits_processor=[held], **LONG)
    engine.close()


def test_a_close_that_waits_can_be_overtaken(demo: decoding.Model) -> None:
    engine, held = decoding.Engine(demo), Held()
    held.free.set()
    requests = [engine.submit([5], logits_processor=[held], **LONG) for _ in range(50)]
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert held.reached.wait(60)
    engine.close(drain=False)
    closing.join(60)
    assert not closing.is_alive() and all(request.done for request in requests)


def test_one_that_nobody_holds_is_collected(demo: decoding.Model) -> None:
    engine = decoding.Engine(demo)
    gone = weakref.ref(engine)
    request = engine.submit([5], **CONTRASTIVE, **SHORT)
    thread = engine._alone._thread
    del engine
    assert request.result(60).shape == (1, 21)
    del request
    until = time.monotonic() + 10
    while gone() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None and thread is not None
    thread.join(10)
    assert not thread.is_alive()
