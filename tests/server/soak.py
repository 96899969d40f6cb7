"""A server under sound, odd and abandoned requests at once, for as long as one likes.

    python -m tests.server.soak --minutes 30

prints a line each minute, and fails where memory grows, a page is lost, an answer changes, or a
request is not answered. It uses this machine's loopback alone.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import socket
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from decoding.server.heaps import limit_heaps
from decoding.server.run import collector_for_requests
from tests.server.bodies import check
from tests.server.held import Held
from tests.server.live import Live, raw
from tests.server.models import all_models
from tests.server.storms import reset

SETTLED = 0.2  # of the time, after which memory should not grow
# What may come and go, of what is kept of bodies and options: it is thrown away when it is full.
BLOCKS, MALLOC, RESIDENT = 100_000, 16 << 20, 32 << 20
CLIENTS = 4  # of each kind


def open_files() -> int:
    """Of this process, connections included."""
    return len(os.listdir("/proc/self/fd"))


class Soak:
    """answered: requests by kind."""

    def __init__(self, live: Live, until: float) -> None:
        self._live, self._until = live, until
        self.answered = {"sound": 0, "odd": 0, "left": 0}
        self.errors = list[BaseException]()
        self._lock = threading.Lock()

    def run(self, kind: str, seed: int) -> None:
        work = {"sound": self._sound, "odd": self._odd, "left": self._left}[kind]
        rng = random.Random(seed)
        try:
            while time.monotonic() < self._until and not self.errors:
                done = work(rng)
                with self._lock:
                    self.answered[kind] += done
        except BaseException as error:
            self.errors.append(error)

    def _sound(self, rng: random.Random) -> int:
        """A seed has one answer, whoever else asks."""
        body = {"model": "stories", "prompt": "Once", "max_tokens": 30, "temperature": 1}
        body |= {"seed": rng.randrange(50), "n": 2}
        plain = self._live.ask("/v1/completions", body)
        assert plain.status == 200, plain
        texts: dict[int, str] = {}
        streamed = body | {"stream": True, "logprobs": rng.choice([None, 1])}
        for event in self._live.ask("/v1/completions", streamed).events:
            for choice in event["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        assert texts == {choice["index"]: choice["text"] for choice in plain.json["choices"]}
        said = self._live.ask("/translate", {"q": ["Danke!", "Guten Morgen!"]})
        assert said.json["translatedText"] == ["Thank you.", "Good morning."]
        return 3

    def _odd(self, rng: random.Random) -> int:
        check(self._live, 5, rng.randrange(2**31))
        return 5

    def _left(self, rng: random.Random) -> int:
        """Requests whose clients go away."""
        body: dict[str, Any] = {"model": "stories", "prompt": "Once", "max_tokens": 400}
        body |= {"n": 4, "temperature": 1, "stream": rng.random() < 0.5}
        body |= {"logprobs": rng.choice([None, 1, 3])}
        connections: list[socket.socket] = [raw(self._live, "/v1/completions", body)]
        time.sleep(rng.random() * 0.1)
        for connection in connections:
            reset(connection)
        return 1


def soak(live: Live, seconds: float) -> tuple[dict[str, int], Held]:
    """How many requests of each kind there were, and by what memory grew once it had settled.
    Raises AssertionError for what is wrong."""
    began = time.monotonic()
    run = Soak(live, began + seconds)
    threads = [
        threading.Thread(target=run.run, args=(kind, seed))
        for kind in run.answered
        for seed in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    time.sleep(SETTLED * seconds)
    settled, spoken = Held.now(), began
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(1.0, seconds / 10))
        if time.monotonic() - spoken > 60:
            spoken = time.monotonic()
            minutes = (spoken - began) / 60
            print(
                f"{minutes:.0f} min: {Held.now()}, {open_files()} files, {run.answered}", flush=True
            )
    for error in run.errors:
        raise error
    live.assert_idle()
    return run.answered, Held.now().beyond(settled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of clients that have gone
    # As `decoding serve` does: they are about clients' requests.
    warnings.simplefilter("ignore")
    limit_heaps()
    with tempfile.TemporaryDirectory() as folder:
        models = all_models(Path(folder))
        with collector_for_requests(), Live(models, max_queue=1000) as live:
            before = open_files()
            answered, growth = soak(live, 60 * options.minutes)
            files = open_files() - before
    print(f"{answered}, memory grew by {growth}; {files} more files are open")
    assert growth.blocks < BLOCKS and growth.malloc < MALLOC and growth.resident < RESIDENT
    assert files <= CLIENTS


if __name__ == "__main__":
    main()
