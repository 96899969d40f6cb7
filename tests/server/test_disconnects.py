"""Clients that go away, that do not read, that send half a body."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

import decoding
from decoding.generation import stop_strings
from decoding.generation.stop_automaton import build
from decoding.server.openai.answers import chunks
from decoding.serving import Settings, create_app
from tests.server.live import Live, raw
from tests.server.models import STORIES, engine
from tests.server.storms import LONG, reset, storm


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live({"stories": engine(STORIES)}, max_queue=10_000) as live:
        yield live


def steps(live: Live) -> int:
    engine = live.served("stories").engine
    assert engine is not None
    return int(engine.stats()["tokens"])


@pytest.mark.parametrize("stream", [True, False])
def test_who_goes_away_cancels_its_request(stream: bool, live: Live) -> None:
    whole = LONG["n"] * LONG["max_tokens"]
    before = steps(live)
    connection = raw(live, "/v1/completions", {**LONG, "stream": stream})
    if stream:
        assert connection.recv(200)
    else:
        time.sleep(0.03)
    began = time.monotonic()
    reset(connection)
    live.assert_idle()
    assert time.monotonic() - began < 1
    assert steps(live) - before < whole / 2, "most of it was not computed"


def test_who_goes_while_pieces_of_several_prompts_wait_for_it() -> None:
    async def pieces(index: int) -> AsyncGenerator[int, None]:
        for _ in range(20):
            yield index

    async def go() -> None:
        answers: Any = SimpleNamespace(prompts=["a", "b"], pieces=pieces)
        async with aclosing(chunks(answers)) as read:
            await anext(read)
            await asyncio.sleep(0.01)  # the queue is full

    asyncio.run(asyncio.wait_for(go(), 10))


def test_a_storm(live: Live) -> None:
    """All reset at once and come again; then the next request is answered as ever."""
    storm(live, rounds=3, clients=60)


def test_who_goes_while_a_table_of_stop_strings_is_made(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that is submitted then is cancelled, too."""
    engine, requests, made = live.served("stories").engine, list[Any](), threading.Event()
    assert engine is not None
    submit = engine.submit

    def slow(*given: Any, **options: Any) -> Any:
        made.wait(10)
        requests.append(submit(*given, **options))
        return requests[-1]

    monkeypatch.setattr(engine, "submit", slow)
    reset(raw(live, "/v1/completions", {**LONG, "stop": "zzz"}))
    while live.served("stories").gate._free < live.served("stories").gate._rows:
        time.sleep(0.001)
    made.set()
    while not requests:
        time.sleep(0.001)
    with pytest.raises(decoding.Cancelled):
        requests[0].result(10)


def test_new_stop_strings_hold_up_no_others(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those whose table is there; and none is made for who has gone before."""
    body = {"prompt": "Once", "max_tokens": 4}
    assert live.ask("/v1/completions", {**body, "stop": "known"}).status == 200
    begun, free, made = threading.Event(), threading.Event(), list[Any]()

    def slow(strings: Any, *rest: Any) -> Any:
        begun.set()
        made.append(strings)
        assert free.wait(60)
        return build(strings, *rest)

    monkeypatch.setattr(stop_strings, "build", slow)
    gate = live.served("stories").gate
    connections = [raw(live, "/v1/completions", {**body, "stop": f"new {i}"}) for i in range(5)]
    while gate._free > gate._rows - len(connections):
        time.sleep(0.001)
    assert begun.wait(60)
    for connection in connections:
        reset(connection)
    live.assert_idle()
    assert live.ask("/v1/completions", {**body, "stop": "known"}).status == 200
    free.set()
    assert live.ask("/v1/completions", {**body, "stop": "the last"}).status == 200
    assert len(made) == 2


def test_half_a_body(live: Live) -> None:
    connection = socket.create_connection(("127.0.0.1", live.port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
    time.sleep(0.02)
    reset(connection)
    assert live.ask("/health").status == 200
    closed = raw(live, "/v1/completions", {**LONG, "n": 1, "max_tokens": 4})
    closed.shutdown(socket.SHUT_WR)  # it has said all, and may still read, or not
    closed.close()
    live.assert_idle()


class Asked:
    """A request to an application, of whose answer so many messages are taken. told: these."""

    def __init__(self, app: Starlette, body: dict[str, Any], reads: float = math.inf) -> None:
        self._reads, self._gone, self.told = reads, asyncio.Event(), list[Any]()
        self._left = [{"type": "http.request", "body": json.dumps(body).encode()}]
        scope: Any = {"type": "http", "method": "POST", "path": "/v1/completions"}
        scope |= {"headers": [], "query_string": b"", "client": None, "root_path": ""}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def go(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self.task, 5)

    async def _receive(self) -> Any:
        if self._left:
            return self._left.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.told.append(message)
        await asyncio.sleep(3600 if len(self.told) == self._reads else 0)


def test_who_does_not_read_stalls_nobody() -> None:
    """Its request ends on the engine and makes room, others are answered, and when it goes nothing
    is left."""
    model = decoding.load(STORIES, device="cpu", threads=1)
    app = create_app(decoding.Engine(model, max_requests=1), Settings(max_queue_seconds=20))
    served = app.state.site.models["default"]
    body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}

    async def main() -> None:
        stuck = [Asked(app, {**body, "stream": True}, 3) for _ in range(3)]
        asked = Asked(app, body)
        await asked.task
        assert asked.told[0]["status"] == 200 and served.gate._free == served.gate._rows
        assert [(len(each.told), each.task.done()) for each in stuck] == [(3, False)] * 3
        for each in stuck:
            await each.go()

    asyncio.run(asyncio.wait_for(main(), 60))
    app.state.site.close()


def test_who_does_not_read_is_left_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.server.connection.LATER", 0.0)
    model = decoding.load(STORIES, device="cpu", threads=1)
    engine = decoding.Engine(model)
    engine.submit("Once", max_new_tokens=1).result()  # what is done once takes its time before
    app = create_app(engine, Settings(deadline=1))
    body = {"prompt": "Once", "max_tokens": 20, "ignore_eos": True, "stream": True}

    async def main() -> None:
        asked = Asked(app, body, 2)
        await asked.task
        assert len(asked.told) == 2, "nothing more is sent"

    asyncio.run(asyncio.wait_for(main(), 30))
    app.state.site.close()
