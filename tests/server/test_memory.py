"""Nothing of a request stays in memory: what Python and malloc hold after hundreds of requests is
what they held before."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.held import Held
from tests.server.live import Live, raw
from tests.server.storms import LONG, reset

REQUESTS, ROUNDS = 200, 8  # of each round, until one leaves nothing: what is kept once is no leak
STORY: dict[str, Any] = {"model": "stories", "prompt": "Once", "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "model": "bytes"}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("/v1/completions", STORY),
    "streams": ("/v1/completions", {**STORY, "stream": True, "n": 2, "temperature": 1.0}),
    "stop strings": ("/v1/completions", {**STORY, "stop": ["zzz"], "logprobs": 1}),
    "chats": ("/v1/chat/completions", CHAT),
    "translations": ("/translate", {"q": ["Danke!", "Gut!"], "num_beams": 1}),
    "errors": ("/v1/completions", {**STORY, "promt": "Once"}),
}


@pytest.mark.parametrize("kind", BODIES)
def test_nothing_stays_of_a_request(kind: str, live: Live) -> None:
    path, body = BODIES[kind]
    data, connection = json.dumps(body), http.client.HTTPConnection("127.0.0.1", live.port)

    def ask() -> None:
        connection.request("POST", path, data)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == (400 if kind == "errors" else 200)

    check_held(live, ask, REQUESTS)
    connection.close()


def test_nothing_stays_of_a_connection(live: Live) -> None:
    check_held(live, lambda: live.ask("/v1/completions", STORY), REQUESTS)


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_stays_of_who_has_gone(stream: bool, live: Live) -> None:
    def ask() -> None:
        connection = raw(live, "/v1/completions", {**LONG, "n": 2, "stream": stream})
        time.sleep(0.005)
        reset(connection)

    check_held(live, ask, REQUESTS // 2, malloc=1024)  # how many there are at once is chance


FREED = """
import ctypes
from decoding.server.heaps import LARGE, limit_heaps
from tests.server.held import mallinfo2

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
assert limit_heaps()
libc.free(libc.malloc(8 * LARGE))
before = mallinfo2().hblks
libc.malloc(2 * LARGE)
assert mallinfo2().hblks == before + 1
"""


def test_large_blocks_are_none_of_a_heap() -> None:
    """Also where a larger one was freed before."""
    subprocess.run([sys.executable, "-c", FREED], check=True)


def check_held(live: Live, ask: Callable[[], object], requests: int, malloc: int = 64) -> None:
    """Raises AssertionError where in each round a block of Python's stays of every fourth request,
    or so many bytes of malloc's of each."""
    grown, before = list[Held](), None
    for _ in range(1 + ROUNDS):
        for _ in range(requests):
            ask()
        live.assert_idle()
        time.sleep(0.2)  # until connections are closed, and lines of log written
        held = Held.now()
        if before is not None:
            grown.append(held.beyond(before))
            if grown[-1].blocks < requests / 4 and grown[-1].malloc < malloc * requests:
                return
        before = held
    raise AssertionError(f"{requests} requests leave something in each round: {grown}")
