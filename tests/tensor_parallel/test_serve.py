"""`decoding serve --tensor-parallel N`: the answers of one process, and an end of all ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from tests.server.live import Live, Said
from tests.server.models import STORIES, engine
from tests.server.ports import free_port
from tests.support.demo import DEMO
from tests.tensor_parallel.ranks import ROOT

WORDS = ("--device", "cpu", "--dtype", "float32", "--threads", "1", "--tensor-parallel", "2")
QUIET = ("--log-level", "warning")  # nobody reads what it says until it has ended
STORY = {"model": "stories", "temperature": 0, "max_tokens": 24}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", STORY | {"prompt": "Once upon a time"}),
    ("/v1/completions", STORY | {"prompt": ["The dog", "A cat", "Lily"], "num_beams": 3}),
    ("/v1/completions", STORY | {"prompt": "Tim", "temperature": 1, "seed": 5, "n": 3}),
    ("/v1/completions", STORY | {"prompt": "One day", "stop": ["mom", "park"]}),
    ("/v1/completions", STORY | {"prompt": "She", "repetition_penalty": 1.4}),
    ("/v1/completions", STORY | {"prompt": "He was", "stream": True}),
    ("/v1/completions", STORY | {"prompt": "The bird", "stream": True, "num_beams": 4}),
    ("/translate", {"q": ["Guten Tag!", "Das ist ein Haus."], "source": "de", "target": "en"}),
    ("/translate", {"q": "Wie geht es?", "source": "de", "target": "en", "alternatives": 2}),
]


@dataclass
class Server:
    """A server whose models two processes share out, and these."""

    process: subprocess.Popen[str]
    port: int

    @property
    def ranks(self) -> list[int]:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in children.split()]

    def ask(self, path: str, body: Any = None) -> Said:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as found:
                return Said(found.status, dict(found.headers), found.read().decode())
        except HTTPError as error:
            return Said(error.code, dict(error.headers), error.read().decode())

    def end(self, *, most: float = 60) -> str:
        """What it says on standard error, once it and all ranks have ended."""
        ranks = self.ranks
        said = self.process.communicate(timeout=most)[1]
        assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
        return said


@contextmanager
def serving(*models: str) -> Iterator[Server]:
    port = free_port()
    named = [word for model in models for word in ("--model", model)]
    command = [
        sys.executable,
        "-m",
        "decoding",
        "serve",
        "--port",
        str(port),
        *WORDS,
        *QUIET,
        *named,
    ]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    server = Server(process, port)
    try:
        until = time.monotonic() + 120
        while not is_up(server):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def is_up(server: Server) -> bool:
    try:
        return server.ask("/ready").status == 200
    except (URLError, ConnectionError):
        return False


@pytest.fixture(scope="module")
def split() -> Iterator[Server]:
    with serving(f"stories={STORIES}", f"demo={DEMO}") as server:
        yield server


def essence(said: Said) -> Any:
    """Of an answer, without ids and times."""
    assert said.status == 200, said.body
    if not said.body.startswith("data:"):
        return said.json.get("choices", said.json)
    return "".join(event["choices"][0]["text"] for event in said.events if event["choices"])


def test_answers_are_those_of_one_process(split: Server) -> None:
    asked = ASKED * 3
    with ThreadPoolExecutor(len(asked)) as clients:
        found = list(clients.map(lambda each: essence(split.ask(*each)), asked))
    with Live({"stories": engine(STORIES), "demo": engine(DEMO)}) as live:
        expected = [essence(live.ask(*each)) for each in ASKED]
    assert found == expected * 3


def test_who_goes_leaves_nothing_behind(split: Server) -> None:
    """Clients that close their connections while they are answered."""
    body = json.dumps(STORY | {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "n": 4})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    for number in range(12):
        with socket.create_connection(("127.0.0.1", split.port)) as client:
            client.sendall((head + body).encode())
            time.sleep(0.01 * number)
    until = time.monotonic() + 30
    while running(split) and time.monotonic() < until:
        time.sleep(0.05)
    assert running(split) == 0
    assert essence(split.ask(*ASKED[0]))


def running(server: Server) -> float:
    lines = server.ask("/metrics").body.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith(("decoding:num_requests_running", "decoding:num_requests_waiting"))
    )


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", STORY | {"prompt": "a", "logprobs": 2}),
    ("/v1/completions", STORY | {"prompt": "a", "best_of": 3, "temperature": 1}),
    ("/v1/completions", STORY | {"prompt": "a", "penalty_alpha": 0.6, "top_k": 4}),
    ("/translate", {"q": "Haus", "source": "de", "target": "en", "alignments": True}),
]


@pytest.mark.parametrize("path, body", REFUSED)
def test_what_ranks_cannot_do_is_refused(path: str, body: Any, split: Server) -> None:
    said = split.ask(path, body)
    assert said.status == 400 and ("tensor_parallel" in said.body or "split" in said.body)
    assert split.ask("/health").status == 200


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_drains_and_ends_all_ranks(number: signal.Signals, code: int) -> None:
    with serving(str(STORIES)) as server, ThreadPoolExecutor() as clients:
        body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "n": 8, "temperature": 1}
        asked = clients.submit(server.ask, "/v1/completions", body)
        time.sleep(0.3)
        for rank in server.ranks if number == signal.SIGTERM else []:  # as systemd does
            os.kill(rank, number)
        server.process.send_signal(number)
        said = server.end()
        assert asked.result().status == 200
        assert server.process.returncode == code
        assert "Traceback" not in said and "decoding: error" not in said, said


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_ends_an_idle_server(rank: int) -> None:
    with serving(str(STORIES)) as server:
        began = time.monotonic()
        os.kill(server.ranks[rank], signal.SIGKILL)
        statuses = set()
        while server.process.poll() is None and time.monotonic() < began + 30:
            try:
                statuses.add(server.ask("/health").status)
            except (URLError, ConnectionError):
                time.sleep(0.01)
        said = server.process.communicate(timeout=30)[1]
        assert server.process.returncode == 128 + signal.SIGKILL
        assert f"SIGKILL has ended rank {rank}" in said
        if rank == 1:
            assert 503 in statuses and "rank 1 of 2" in said


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    from tests.server.models import sentence_model

    sentence_model(tmp_path)
    command = [sys.executable, "-m", "decoding", "serve", "--model", str(tmp_path), *WORDS]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert said.returncode == 2 and "not for encoders" in said.stderr
