"""Batches that are started while those before them are computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decoding.generation import batching
from decoding.text.ahead import RUNNING, started_ahead


class Batch:
    rows = 10

    def __init__(self, waits: bool = False) -> None:
        self.waits, self.cancelled = waits, False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batching.ROWS, "cpu", 10)


def test_batches_come_in_order_once_enough_are_started() -> None:
    batches, started = [Batch() for _ in range(9)], list[Batch]()

    def starting() -> Iterator[Batch]:
        for batch in batches:
            started.append(batch)
            yield batch

    for at, batch in enumerate(started_ahead(starting(), "cpu", lambda: True)):
        assert batch is batches[at]
        assert len(started) == min(at + RUNNING + 1, len(batches))
    assert at == len(batches) - 1


def test_what_waits_for_its_result_is_asked_at_once() -> None:
    started = list[Batch]()

    def starting() -> Iterator[Batch]:
        for _ in range(3):
            started.append(Batch(waits=True))
            yield started[-1]

    for at, _ in enumerate(started_ahead(starting(), "cpu", lambda: True)):
        assert len(started) == at + 1


def test_results_are_asked_for_where_nothing_else_is_read() -> None:
    batches = [Batch(), Batch()]
    assert next(started_ahead(iter(batches), "cpu", lambda: False)) is batches[0]


def test_who_stops_cancels_what_was_started() -> None:
    batches = [Batch() for _ in range(9)]
    stream = started_ahead(iter(batches), "cpu", lambda: True)
    assert next(stream) is batches[0]
    stream.close()
    cancelled = [batch.cancelled for batch in batches]
    assert cancelled == [False] + [True] * RUNNING + [False] * (len(batches) - RUNNING - 1)
