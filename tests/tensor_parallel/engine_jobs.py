"""What two ranks do for test_engine.py: see ranks.py. Rank 0 submits, the other follows it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import decoding
from decoding.serving import planning
from tests.tensor_parallel.calls import FORCED, FP8, ROWS, on_host
from tests.tensor_parallel.jobs import RANK, Given, load
from tests.tensor_parallel.requests import LONG, REQUESTS, generated, stopped

ROOM = 30  # rows that step at once: fewer than the requests have
Engine = decoding.Engine


def led(make: Callable[[Given], Engine], work: Callable[[Engine], Any]) -> Callable[[Given], Any]:
    """Work of rank 0 on an engine that all ranks have."""

    def job(given: Given) -> Any:
        with make(given) as engine:
            return work(engine) if RANK == 0 else None

    job.__name__ = work.__name__
    return job


def small(given: Given) -> Engine:
    return Engine(load(given["gpt2"]), max_requests=ROOM)


def mixed(given: Given) -> Any:
    """Requests of all kinds at once, of each model."""
    found = dict[Any, Any]()
    for name, path in given.items():
        with Engine(load(path), max_requests=ROOM) as engine:
            if RANK > 0:
                continue
            begun = [engine.submit(row, **options) for row, options in REQUESTS]
            found[name] = [on_host(request.result()).tolist() for request in begun]
            found[name, "batch"] = on_host(engine.generate(ROWS, max_new_tokens=5)).tolist()
    return found


def side_by_side(given: Given) -> Any:
    """Two engines at once, each of which would have all cores for itself."""
    cores = len(os.sched_getaffinity(0))
    models = [load(given[name], threads=cores) for name in ("gpt2", "marian")]
    with Engine(models[0]) as first, Engine(models[1]) as second:
        if RANK > 0:
            return None
        begun = [(first.submit(row, **LONG), second.submit(row, **LONG)) for row in ROWS * 12]
        return [[on_host(r.result()).tolist() for r in each] for each in zip(*begun, strict=True)]


def streamed(engine: Engine) -> Any:
    """Of each request the pieces put together, and its result."""
    begun = [
        (row, engine.submit(row, stream=True, num_beams=beams, **LONG))
        for row in ROWS
        for beams in (1, 3)
    ]
    return [
        ([*row, *(token for [new] in request for token in new)], request.result().tolist()[0])
        for row, request in begun
    ]


def cancelled(engine: Engine) -> Any:
    """Requests beside others that are cancelled at any moment: before they run, and while they do.
    What the former find, how the latter end, and what the engine has left."""
    begun = [engine.submit(row, stream=True, **LONG) for row in ROWS * 12]
    for number, request in enumerate(begun):
        if number % 2 == 0:
            continue
        if number % 3 == 0:
            next(iter(request))
        request.cancel()
    found = [on_host(request.result()).tolist() for request in begun[::2]]
    return found, [ended(request) for request in begun[1::2]], idle(engine)


def expired(engine: Engine) -> Any:
    """One request whose time is up beside one that has time."""
    late = [engine.submit(row, deadline=1e-3, **LONG) for row in ROWS * 8]
    well = engine.submit(ROWS[0], **LONG)
    return on_host(well.result()).tolist(), [ended(request) for request in late], idle(engine)


def ended(request: Any) -> Any:
    try:
        return on_host(request.result()).tolist()
    except (decoding.Cancelled, TimeoutError) as error:
        return type(error)


def idle(engine: Engine) -> Any:
    stats = engine.stats()
    until = time.monotonic() + 10
    while (stats["running"] or stats["waiting"]) and time.monotonic() < until:
        time.sleep(0.01)
        stats = engine.stats()
    return [stats[name] for name in ("running", "waiting", "swapped")]


def swapped(given: Given) -> Any:
    """Results with memory for a part of what runs, and how often a request was swapped out."""
    model = load(given["gpt2"])
    with mock.patch.object(planning, "TABLES", 1.0), few_pages(12):
        engine = Engine(model, max_requests=8, overcommit=True)
    with engine:
        if RANK > 0:
            return None
        begun = [engine.submit(row, **LONG) for row in ROWS * 4]
        return [on_host(r.result()).tolist() for r in begun], engine.stats()["swaps"]


@contextmanager
def few_pages(pages: int) -> Iterator[None]:
    def fewer(*given: Any) -> Any:
        return replace(planning.engine_limits(*given), pages=pages)

    with mock.patch("decoding.serving.engine.engine_limits", fewer):
        yield


def in_fp8(given: Given) -> Any:
    """The scores of beams of an engine whose keys and values are in fp8, and swapped out."""
    model = load(given["gpt2"], **FP8)
    with mock.patch.object(planning, "TABLES", 1.0), few_pages(12):
        engine = Engine(model, max_requests=8, overcommit=True)
    shown: dict[str, Any] = {"return_dict_in_generate": True, "output_sequences_scores": True}
    with engine:
        if RANK > 0:
            return None
        begun = [engine.submit(row, pad_token_id=0, **FORCED, **shown) for row in ROWS * 4]
        return [float(request.result().sequences_scores[0]) for request in begun]


def stop_strings(given: Given) -> Any:
    """Each table is sent once, while a request needs it, and in several parts."""
    model = load("models/demo", dtype="float32")
    with mock.patch("decoding.engine.ranks.SHARED", 1 << 16):
        engine = Engine(model)
    with engine:
        if RANK > 0:
            return None
        return [
            [on_host(r.result()).tolist() for r in stopped(engine.submit, model.tokenizer)]
            for _ in range(2)
        ]


def refused(given: Given) -> Any:
    """What a follower cannot do, and what nobody can while the engine is open."""
    model, found = load(given["gpt2"]), dict[str, Any]()
    with Engine(model) as engine:
        calls = {
            "submit": lambda: engine.submit(ROWS[0]),
            "stats": engine.stats,
            "alone": lambda: engine.submit(ROWS[0], penalty_alpha=0.6, top_k=4),
            "generate": lambda: model.generate(ROWS),
            "score": lambda: model.score(ROWS),
        }
        for name, call in calls.items():
            try:
                found[name] = type(call())
            except Exception as error:
                found[name] = error
    return found


def generate_again(given: Given) -> Any:
    """The model's own calls, once its engines are closed."""
    return generated(load(given["gpt2"]), ROWS[0], {"max_new_tokens": 5})


def left(given: Given) -> Any:
    """A follower that leaves ends rank 0's engine: at work, and with nothing to do."""
    for busy in (True, False):
        engine = small(given)
        if RANK > 0:
            time.sleep(0.3)
            engine.close(drain=False)
            continue
        with contextlib.suppress(decoding.Error):  # the other one may have gone by then
            engine.submit(ROWS[0], **LONG).result()
            while busy and engine.failure is None:
                engine.submit(ROWS[0], **LONG)
        until = time.monotonic() + 30
        while engine.failure is None and time.monotonic() < until:
            time.sleep(0.01)
        error = str(engine.failure)
        engine.close()
    return error if RANK == 0 else None


def killed(given: Given) -> Any:
    """Rank 1 dies while requests run. How they end, and after how many seconds."""
    engine = small(given)
    if RANK > 0:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    began, errors = time.monotonic(), set()
    while time.monotonic() < began + 60:
        try:
            requests = [engine.submit(row, **LONG) for row in ROWS]
            for request in requests:
                request.result()
        except decoding.Error as error:
            errors.add(str(error))
            break
    return errors, time.monotonic() - began, str(engine.failure)


JOBS = {
    job.__name__: job
    for job in (
        mixed,
        side_by_side,
        led(small, streamed),
        led(small, cancelled),
        led(small, expired),
        swapped,
        in_fp8,
        stop_strings,
        refused,
        generate_again,
        left,
        killed,  # the last
    )
}
