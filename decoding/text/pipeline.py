"""Batches that are read while those before them are computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Protocol, TypeVar

from decoding.generation.batching import ROWS

RUNNING = 4  # times the rows that an engine steps at once: so many are given to it ahead


class Batch(Protocol):
    """A call of the model that has been started."""

    @property
    def rows(self) -> int:
        """Rows that an engine computes for it."""

    @property
    def waits(self) -> bool:
        """Whether nothing is computed before its result is asked for."""

    def cancel(self) -> None:
        """Ends it, where nobody asks for its result any more."""


B = TypeVar("B", bound=Batch)


def started_ahead(
    batches: Iterable[B], device: str, ready: Callable[[], bool]
) -> Generator[B, None, None]:
    """The batches in order, each when it is time to ask for its result: those that wait for that
    at once, others behind the starts of some that follow. Where the caller stops, or an error is
    raised, those that were started are cancelled.

    device: its type. ready: says whether another batch is there; where not, results are asked for.
    """
    running, rows = deque[B](), 0
    try:
        for batch in batches:
            running.append(batch)
            rows += batch.rows
            while running and (running[0].waits or rows > RUNNING * ROWS[device] or not ready()):
                rows -= running[0].rows
                yield running.popleft()
        while running:
            yield running.popleft()
    finally:
        for batch in running:
            batch.cancel()
