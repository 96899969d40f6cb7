"""Who may submit to an engine: a bounded queue with an age, in front of the engine's own."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from decoding.server.errors import ApiError


class Gate:
    """Lets requests through while the engine has rows for them, or soon has.

    The engine admits in its own order what is inside; the others wait here, where they can be
    counted and sent away. For one event loop.
    """

    def __init__(self, rows: int, max_waiting: int, max_seconds: float) -> None:
        """rows: of all requests inside."""
        self._rows = self._free = rows
        self._most, self._seconds = max_waiting, max_seconds
        self._heap: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        return sum(not future.done() for *_, future in self._heap)

    def most(self, rows: int) -> int:
        """Requests of so many rows that are inside at once."""
        return max(1, self._rows // rows)

    def check(self) -> None:
        """Raises ApiError 429 where the queue is full."""
        if len(self._heap) >= self._most and self.waiting >= self._most:
            raise ApiError(
                429,
                f"{self._most} requests wait already: try again later",
                code="queue_full",
                retry_after=1,
            )

    async def enter(self, rows: int, priority: int) -> int:
        """Waits for room; returns the rows to leave() with. Raises ApiError 503 after too long."""
        rows = min(rows, self._rows)
        if not self._heap and rows <= self._free:
            self._free -= rows
            return rows
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._heap, (-priority, next(self._numbers), rows, future))
        alarm = loop.call_later(self._seconds, give_up, future, self._seconds)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.leave(rows)  # it was let in, and goes
            raise
        finally:
            alarm.cancel()
            self._admit()
        return rows

    def leave(self, rows: int) -> None:
        self._free += rows
        self._admit()

    def _admit(self) -> None:
        while self._heap:
            *_, rows, future = self._heap[0]
            if not future.done():
                if rows > self._free:
                    return
                self._free -= rows
                future.set_result(None)
            heapq.heappop(self._heap)


def give_up(future: asyncio.Future[None], seconds: float) -> None:
    if not future.done():
        said = f"the request has waited {seconds:g} seconds for its turn: try again later"
        future.set_exception(ApiError(503, said, code="queue_age", retry_after=seconds))
