"""A provider for tests of the benchmarks of serving, and how clients ask it."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from benchmarks.online.base import Provider, Reply
from benchmarks.online.client import Limits, Plan
from decoding.compare import engines


def plan(rate: float, **given: Any) -> Plan:
    limits = Limits(ttft=0.1, tpot=0.1, e2e=1.0)
    usual = {"seconds": 0.3, "lead": 0.1, "patience": 1.0, "seed": 1, "stream": True}
    return Plan(rate, limits=limits, **usual | given)


class StepProvider(Provider):
    """An ideal engine: every `step` seconds each row gets a token, requests join and leave between
    any two steps, and cost each other nothing. Who comes while `rows` are computed waits."""

    name = "steps"
    engine = engines.Ours

    def __init__(self, rows: int | None = None, step: float = 0.001) -> None:
        self.rows, self.step = rows or 1000, step
        self.waiting: deque[Reply] = deque()
        self.running: list[Reply] = []
        self.lock = threading.Lock()
        self.open = True
        self.thread = threading.Thread(target=self.loop, daemon=True)
        self.thread.start()

    def __enter__(self) -> StepProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, reply: Reply, stream: bool) -> None:
        with self.lock:
            self.waiting.append(reply)

    def cancel(self) -> None:
        with self.lock:
            self.waiting.clear()
            self.running.clear()

    def close(self) -> None:
        self.open = False
        self.thread.join()

    def loop(self) -> None:
        while self.open:
            time.sleep(self.step)
            with self.lock:
                self.advance()

    def advance(self) -> None:
        while self.waiting and sum(reply.job.beams for reply in self.running) < self.rows:
            self.running.append(self.waiting.popleft())
        for reply in list(self.running):
            reply.take(1)
            if reply.tokens == reply.job.new:
                self.running.remove(reply)
                reply.finish()
