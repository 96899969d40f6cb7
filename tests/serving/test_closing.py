"""The end of an engine: closed, left, collected, forked, or open when the program ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import decoding
from decoding.serving.model_engine import StartedCall
from tests.support.demo import DEMO
from tests.support.random_models import ours

LONG: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 400, "eos_token_id": None}


@pytest.fixture(scope="module")
def demo() -> decoding.Model:
    """A model whose requests last."""
    return decoding.load("demo", device="cpu", dtype="float32", threads=1)


def test_a_block_waits_for_what_was_submitted(demo: decoding.Model) -> None:
    with decoding.Engine(demo) as engine:
        requests = [engine.submit([5, 6, i], **LONG) for i in range(7, 10)]
        assert not engine.closed
    assert engine.closed and "closed" in repr(engine)
    assert all(request.done for request in requests)
    assert all(request.result().shape == (1, 401) for request in requests)


def test_a_block_cancels_after_an_exception(demo: decoding.Model) -> None:
    with pytest.raises(ZeroDivisionError), decoding.Engine(demo) as engine:
        requests = [engine.submit([5, 6, i], **LONG) for i in range(7, 17)]
        raise ZeroDivisionError
    assert all(request.done for request in requests)
    with pytest.raises(decoding.Cancelled):
        requests[-1].result()


def test_closed_without_draining(demo: decoding.Model) -> None:
    engine = decoding.Engine(demo)
    requests = [engine.submit([5, 6, i], stream=bool(i % 2), **LONG) for i in range(7, 17)]
    readers: list[Exception] = []

    def read() -> None:
        try:
            list(requests[-1])
        except decoding.Cancelled as error:
            readers.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    engine.close(drain=False)
    thread.join(60)
    assert len(readers) == 1
    assert all(request.done for request in requests)


def test_a_call_of_many_sentences_is_cancelled(demo: decoding.Model) -> None:
    engine = decoding.Engine(demo, max_requests=2)
    started = StartedCall(
        demo.prepare([[5, 6, i] for i in range(7, 47)], **LONG), engine._dispatcher
    )
    engine.close(drain=False)
    with pytest.raises(decoding.Cancelled, match="the call was cancelled"):
        started.result()


def test_a_closed_engine_is_of_no_use() -> None:
    engine = decoding.Engine(ours("gpt2"))
    request = engine.submit([5], max_new_tokens=5)
    engine.close()
    engine.close()
    engine.close(drain=False)
    calls: list[Callable[[], Any]] = [lambda: engine.submit([5], max_new_tokens=5), engine.stats]
    for call in calls:
        with pytest.raises(ValueError, match=r"the engine is closed: make another one"):
            call()
    request.cancel()
    assert request.result().shape[0] == 1


def test_a_close_that_waits_can_be_overtaken(demo: decoding.Model) -> None:
    engine = decoding.Engine(demo, max_requests=1)
    requests = [engine.submit([5, 6, i], **LONG) for i in range(7, 37)]
    waiting = threading.Thread(target=engine.close)
    waiting.start()
    while not engine.closed:
        time.sleep(0.001)
    with pytest.raises(ValueError, match="closed"):
        engine.submit([5, 6, 0], **LONG)
    requests[-1].cancel()  # requests can be cancelled meanwhile
    engine.close(drain=False)
    waiting.join(60)
    assert not waiting.is_alive() and all(request.done for request in requests)


def test_a_closed_model_takes_no_requests() -> None:
    model = decoding.load(DEMO, device="cpu", dtype="float32", threads=1)
    with decoding.Engine(model) as engine:
        request = engine.submit([5, 6, 0], **LONG)
        model.close()
        with pytest.raises(ValueError, match="the model is closed"):
            engine.submit([5, 6, 0])
        assert request.result(60).shape == (1, 401)  # the engine has weights of its own


def test_an_engine_that_nobody_holds_ends() -> None:
    before = threading.active_count()
    engine = decoding.Engine(ours("gpt2"))
    engine.submit([5], max_new_tokens=5).result()
    held = weakref.ref(engine)
    del engine
    until = time.monotonic() + 60
    while (held() is not None or threading.active_count() > before) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert held() is None and threading.active_count() <= before


def test_a_request_keeps_its_engine(demo: decoding.Model) -> None:
    request = decoding.Engine(demo).submit([5, 6, 0], **LONG)
    gc.collect()
    assert request.result(60).shape == (1, 401)


def test_engines_side_by_side() -> None:
    model = ours("gpt2")
    with decoding.Engine(model) as one, decoding.Engine(model, max_requests=2) as two:
        requests = [engine.submit([5, 6], max_new_tokens=8) for engine in (one, two) * 5]
        expected = model.generate([[5, 6]], max_new_tokens=8).tolist()
        assert all(request.result().tolist() == expected for request in requests)


OPEN = """
import sys, time
import decoding

def slow(ids, scores):
    time.sleep(0.01)
    return scores

model = decoding.load(sys.argv[1], "cpu", threads=1)
engine = decoding.Engine(model)
long = {"num_beams": 1, "max_new_tokens": 400, "eos_token_id": None}
requests = [engine.submit([5, 6, i], **long) for i in range(7, 57)]
alone = [engine.submit([5, 6, i], logits_processor=[slow], **long) for i in range(7, 17)]
print(next(iter(engine.submit([5, 6, 0], stream=True, **long))))
"""

FORK = """
import os, sys
import decoding

model = decoding.load(sys.argv[1], "cpu", threads=1)
engine = decoding.Engine(model)
request = engine.submit([5, 6, 0], max_new_tokens=400, eos_token_id=None)
child = os.fork()
if child == 0:
    for call in (request.result, lambda: list(request), engine.stats, lambda: engine.submit([5])):
        try:
            call()
        except decoding.Error as error:
            print(error, flush=True)
    request.cancel()
    engine.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(tuple(request.result().shape))
engine.close()
"""


def run(code: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", code, str(DEMO)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_program_ends_while_requests_run() -> None:
    assert run(OPEN).startswith("[[")


def test_a_forked_child_is_told_and_does_not_hang() -> None:
    *told, shape = run(FORK).splitlines()
    assert len(told) == 4 and all("before the process forked" in line for line in told)
    assert shape == "(1, 401)"
