"""A dynamic batcher, as servers put in front of an engine that computes whole batches."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.online.base import Provider, Reply

WAIT = 0.005  # seconds from the first request of a batch until it is computed
MOST = {"cpu": 32, "cuda": 128}  # requests in a batch, where nobody says how many rows


class Batcher(Provider):
    """Collects requests for 5 ms, or until a batch is full, has the engine answer it, and so on."""

    static = True

    def __init__(self, engine: Any, device: str, rows: int | None) -> None:
        self.rows, self.most = rows, MOST[device]
        self.queue: SimpleQueue[Reply | None] = SimpleQueue()
        self.thread = threading.Thread(target=self.loop, daemon=True)
        self.thread.start()

    @abstractmethod
    def answer(self, batch: Sequence[Reply]) -> None:
        """Computes a batch and writes its replies to the end."""

    def submit(self, reply: Reply, stream: bool) -> None:
        self.queue.put(reply)

    def cancel(self) -> None:
        """What waits; the batch that is computed goes on."""
        while not self.queue.empty():
            self.queue.get()

    def close(self) -> None:
        self.cancel()
        self.queue.put(None)
        self.thread.join()

    def loop(self) -> None:
        while first := self.queue.get():
            batch = self.collect(first)
            try:
                self.answer(batch)
            except Exception as error:
                for reply in batch:
                    reply.fail(f"{type(error).__name__}: {error}")

    def collect(self, first: Reply) -> list[Reply]:
        batch, end = [first], time.perf_counter() + WAIT
        most = max(1, self.rows // first.job.beams) if self.rows else self.most
        while len(batch) < most:
            try:
                reply = self.queue.get(timeout=max(0.0, end - time.perf_counter()))
            except Empty:
                break
            if reply is None:
                self.queue.put(None)  # for the loop
                break
            batch.append(reply)
        return batch
