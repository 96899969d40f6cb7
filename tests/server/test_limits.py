"""What a server refuses: how much, and for how long."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import decoding
from decoding.server.errors import ApiError
from decoding.server.fields import KEPT, LONGEST, Fields, Kept
from decoding.server.gate import Gate
from decoding.server.openai import answers, completions
from decoding.server.openai.answers import Answers
from decoding.server.openai.logprobs import logprobs_of
from decoding.server.served import INTERVAL, Served
from decoding.server.tasks import LARGE
from decoding.serving import create_app
from decoding.text.complete import read_texts, resolved
from decoding.text.window_translator import WindowTranslator
from tests.server.live import Live, raw
from tests.server.models import STORIES, sentence_model
from tests.support.demo import DEMO

LONG = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "n": 4, "temperature": 1.0}


@pytest.fixture(scope="module")
def model() -> decoding.Model:
    return decoding.load(STORIES, device="cpu", threads=1)


def test_sizes(model: decoding.Model) -> None:
    settings: dict[str, Any] = {"body_bytes": 1000, "max_new_tokens": 20, "max_texts": 2}
    with Live({"m": decoding.Engine(model)}, **settings) as live:
        said = live.ask("/v1/completions", {"prompt": "a" * 1000})
        assert said.status == 413 and "takes 1000" in said.json["error"]["message"]
        said = live.ask("/v1/completions", {"prompt": "a", "max_tokens": 21})
        assert said.status == 400 and "this server allows 20" in said.json["error"]["message"]
        assert said.json["error"]["param"] == "max_new_tokens"
        assert live.ask("/v1/completions", {"prompt": ["a"] * 3}).status == 400
        assert live.ask("/v1/completions", {"prompt": "a", "max_tokens": 20}).status == 200
        [choice] = live.ask("/v1/completions", {"prompt": "a"}).json["choices"]
        assert choice["finish_reason"] == "length", "what a client does not ask for is not refused"


def test_chunks_of_a_body_are_counted(model: decoding.Model) -> None:
    import http.client

    with Live({"m": decoding.Engine(model)}, body_bytes=1000) as live:
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
        parts = iter([b"a" * 600, b"b" * 600])
        connection.request("POST", "/v1/completions", parts, encode_chunked=True)
        assert connection.getresponse().status == 413


def test_a_deadline(model: decoding.Model) -> None:
    with Live({"m": decoding.Engine(model)}, deadline=0.02) as live:
        said = live.ask("/v1/completions", LONG)
        assert said.status == 504 and "deadline" in said.json["error"]["message"]
        streamed = live.ask("/v1/completions", {**LONG, "stream": True})
        assert streamed.status in (200, 504), "before its first token, or behind it"
        assert "deadline" in streamed.body
        live.assert_idle()


def test_a_deadline_of_what_no_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.server.connection.LATER", 0.0)
    model, go_on = sentence_model(tmp_path), threading.Event()
    monkeypatch.setattr(model, "embed", lambda texts: go_on.wait(60))
    with Live({"m": model}, deadline=0.1) as live:
        said = live.ask("/v1/embeddings", {"input": "a"})
        go_on.set()
    assert (said.status, said.json["error"]["code"]) == (504, "deadline")


def test_a_deadline_of_a_body(model: decoding.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that does not come."""
    monkeypatch.setattr("decoding.server.connection.LATER", 0.0)
    with Live({"m": decoding.Engine(model)}, deadline=0.1) as live:
        connection = socket.create_connection(("127.0.0.1", live.port), timeout=60)
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 504")
        connection.close()


def test_a_full_queue(model: decoding.Model) -> None:
    engine = decoding.Engine(model, max_requests=1)
    with Live({"m": engine}, max_queue=1, max_queue_seconds=60) as live:
        found = list[Any]()
        body = {**LONG, "n": 1}
        threads = [
            threading.Thread(target=lambda: found.append(live.ask("/v1/completions", body)))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        by_status = {said.status: said for said in found}
        assert set(by_status) == {200, 429}
        refused = by_status[429]
        assert refused.headers["retry-after"] == "1"
        assert refused.json["error"]["code"] == "queue_full"
        assert sum(said.status == 200 for said in found) >= 3, "two run and one waits"
        live.assert_idle()


def test_a_queue_of_those_that_step_alone(model: decoding.Model) -> None:
    """Is full by itself, while others that share steps are answered."""
    with Live({"m": decoding.Engine(model)}, max_queue=1, max_queue_seconds=60) as live:
        statuses = list[int]()
        body = {"prompt": "The", "penalty_alpha": 0.6, "top_k": 8, "max_tokens": 300}

        def ask() -> None:
            statuses.append(live.ask("/v1/completions", body).status)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        while 429 not in statuses and len(statuses) < len(threads):
            time.sleep(0.001)
        assert live.ask("/v1/completions", {"prompt": "The", "max_tokens": 4}).status == 200
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429} and statuses.count(200) >= 3
        live.assert_idle()


def test_a_queue_of_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two compute, also where their clients have gone, one waits, and others are sent away."""
    model, go_on, computing = sentence_model(tmp_path), threading.Event(), list[Any]()
    embed = model.embed

    def slow(texts: Any) -> Any:
        computing.append(texts)
        go_on.wait(60)
        return embed(texts)

    monkeypatch.setattr(model, "embed", slow)
    body = {"input": ["a"]}
    with Live({"m": model}, max_queue=1, max_queue_seconds=60) as live:
        gone = [raw(live, "/v1/embeddings", body) for _ in range(2)]
        while len(computing) < 2:
            time.sleep(0.001)
        for connection in gone:
            connection.close()
        found = list[Any]()
        thread = threading.Thread(target=lambda: found.append(live.ask("/v1/embeddings", body)))
        thread.start()
        while not live.served("m").waiting:
            time.sleep(0.001)
        said = live.ask("/v1/embeddings", body)
        assert (said.status, said.json["error"]["code"]) == (429, "queue_full")
        go_on.set()
        thread.join()
        assert found[0].status == 200 and len(computing) == 3
        live.assert_idle()


def test_who_waits_for_logprobs_has_no_thread_that_others_need(
    model: decoding.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, free, clients = list[Any](), threading.Event(), 40  # a loop has 32 threads at most

    async def counted(self: Answers, *given: Any) -> None:
        waiting.append(self)
        await find_logprobs(self, *given)

    def held(*given: Any) -> Any:
        assert free.wait(60)
        return logprobs_of(*given)

    find_logprobs = Answers._find_logprobs
    monkeypatch.setattr(Answers, "_find_logprobs", counted)
    monkeypatch.setattr(answers, "logprobs_of", held)
    body = {"prompt": "Once", "max_tokens": 2, "logprobs": 2}
    with Live({"m": decoding.Engine(model)}) as live:
        connections = [raw(live, "/v1/completions", body) for _ in range(clients)]
        while len(waiting) < clients:
            time.sleep(0.001)
        assert live.ask("/tokenize", {"prompt": "a" * (LARGE + 1)}).status == 200
        free.set()
        for connection in connections:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            connection.close()


GREEDY = {"num_beams": 1, "max_new_tokens": 2}
BODIES = [
    ("/translate", {**GREEDY, "q": ["Guten Morgen!"] * 30}),
    ("/translate", {**GREEDY, "q": "Guten Morgen! " * 300}),
    ("/v1/completions", {"max_tokens": 2, "prompt": ["Once"] * 30}),
    ("/v1/completions", {"max_tokens": 2, "prompt": ["Once"] * 30, "stream": True}),
]


@pytest.fixture(scope="module")
def small(model: decoding.Model) -> Iterator[Live]:
    """A server of few rows."""
    models = {"m": model, "demo": decoding.load(DEMO, device="cpu", threads=1)}
    engines = {name: decoding.Engine(each, max_requests=2) for name, each in models.items()}
    with Live(engines, max_queue=1) as live:
        yield live


@pytest.mark.parametrize("path, body", BODIES)
def test_a_body_leaves_the_queue_to_others(
    path: str, body: dict[str, Any], small: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many texts it has."""
    waiting = list[int]()
    enter = Gate.enter

    async def counted(self: Gate, *given: Any) -> int:
        found = await enter(self, *given)
        waiting.append(self.waiting)
        return found

    monkeypatch.setattr(Gate, "enter", counted)
    assert small.ask(path, body).status == 200
    assert len(waiting) > 10 and not any(waiting)
    small.assert_idle()


@pytest.mark.parametrize("path, body", BODIES)
def test_many_short_texts_are_read_in_threads(
    path: str, body: dict[str, Any], small: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a long one is, so that the loop goes on."""
    threads = list[threading.Thread]()

    def watched(read: Any) -> Any:
        def reading(*given: Any) -> Any:
            threads.append(threading.current_thread())
            return read(*given)

        return reading

    monkeypatch.setattr(WindowTranslator, "cut", watched(WindowTranslator.cut))
    monkeypatch.setattr(completions, "read_texts", watched(read_texts))
    name = "q" if "q" in body else "prompt"
    assert small.ask(path, {**body, name: ["Guten Morgen! " * 20] * 40}).status == 200
    assert len(threads) == 40 and small._thread not in threads
    threads.clear()
    assert small.ask(path, {**body, name: "Danke!"}).status == 200
    assert threads == [small._thread], "what takes no time needs no other thread"


def test_the_gate() -> None:
    """Admits in order, those of a higher priority first, and lets nobody wait for ever."""

    async def main() -> None:
        gate, order = Gate(4, 3, 0.5), list[str]()

        async def enter(name: str, rows: int, priority: int = 0) -> None:
            rows = await gate.enter(rows, priority)
            order.append(name)
            await asyncio.sleep(0.05)
            gate.leave(rows)

        tasks = [asyncio.create_task(enter(*given)) for given in (("a", 3), ("b", 2), ("c", 1))]
        await asyncio.sleep(0)
        assert (order, gate.waiting) == (["a"], 2), "c does not overtake b"
        tasks.append(asyncio.create_task(enter("d", 99, 1)))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as full:
            gate.check()
        assert (full.value.status, full.value.retry_after) == (429, 1)
        await asyncio.gather(*tasks)
        assert order == ["a", "d", "b", "c"] and gate._free == 4
        rows = await gate.enter(4, 0)
        waiting = asyncio.create_task(enter("gone", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(ApiError, match="has waited 0.5 seconds") as late:
            await enter("late", 1)
        assert (late.value.status, late.value.code) == (503, "queue_age")
        gate.leave(rows)
        assert (gate._free, gate.waiting) == (4, 0)
        await enter("last", 1)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_waiter_that_is_let_in_and_cancelled_at_once_leaves() -> None:
    async def main() -> None:
        gate = Gate(1, 9, 60)
        rows = await gate.enter(1, 0)
        waiting = asyncio.create_task(gate.enter(1, 0))
        await asyncio.sleep(0)
        gate.leave(rows)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert gate._free == 1

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_bodies_ask_for_is_kept() -> None:
    """Not for ever, not for long bodies, and no error of one."""
    kept, made = Kept(), list[Any]()

    def make(fields: Fields) -> int:
        made.append(dict(fields))
        if fields.pop("wrong", None):
            raise ValueError("wrong")
        return len(made)

    assert [kept.once({"a": value}, make) for value in (1, 1, 1.0, True, "1", 1)] == [
        1,
        1,
        2,
        3,
        4,
        1,
    ]
    for _ in range(2):
        with pytest.raises(ApiError, match="wrong"):
            kept.once({"wrong": True}, make)
    assert [kept.once({"a": "b" * LONGEST}, make) for _ in range(2)] == [7, 8]
    for value in range(KEPT):
        kept.once({"b": value}, make)
    assert kept.once({"a": 1}, make) == len(made)


def test_streams_share_a_rate_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has them less often, the more streams there are whose tokens still come."""
    monkeypatch.setattr("decoding.server.served.PIECES", 10)
    app = create_app({"stories": decoding.Engine(decoding.load(STORIES, device="cpu", threads=1))})
    served: Served = app.state.site.models["stories"]

    async def main() -> list[float]:
        over, found = asyncio.Event(), [served.interval()]
        monkeypatch.setattr(decoding.Request, "until_done", lambda request: over.wait())
        given: dict[str, Any] = {"left": 60.0, "max_new_tokens": 2}
        _, config = resolved(served.model, {})
        async with AsyncExitStack() as streams:
            for stream in (True, False, True, True, True):
                block = served.submitted([1, 2], config, stream=stream, **given)
                await streams.enter_async_context(block)
            await asyncio.sleep(0)
            found.append(served.interval())
            over.set()
            await asyncio.sleep(0.01)
            found.append(served.interval())
        return found

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [INTERVAL, 0.4, INTERVAL]
    app.state.site.close()
