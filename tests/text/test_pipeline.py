"""Batches that are read, computed and used side by side."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Generator

import pytest

from decoding.common.phases import Phases
from decoding.generation import batching
from decoding.text.pipeline import RUNNING, Ahead, Pipeline


class Batch:
    rows = 10

    def __init__(self, number: int, may_end: threading.Event | None = None) -> None:
        self.number, self.cancelled = number, threading.Event()
        self._may_end = may_end

    def output(self) -> int:
        while self._may_end is not None and not self._may_end.wait(0.01):
            if self.cancelled.is_set():
                raise RuntimeError("cancelled")
        return -self.number

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batching.ROWS, "cpu", 10)


def starting(
    begun: list[Batch], count: int, **how: threading.Event
) -> Generator[Batch, None, None]:
    for number in range(count):
        begun.append(Batch(number, **how))
        yield begun[-1]


def settled(begun: list[Batch]) -> int:
    """How many batches are started in the end."""
    before = -1
    while len(begun) > before:
        before = len(begun)
        time.sleep(0.1)
    return before


@pytest.mark.parametrize("apart", [True, False])
def test_outputs_come_in_order(apart: bool) -> None:
    begun = list[Batch]()
    pipeline: Pipeline[Batch] = Pipeline("cpu", Phases(), apart)
    found = list(pipeline.run(starting(begun, 99)))
    assert [output for _, output in found] == [-number for number in range(99)]
    assert [batch for batch, _ in found] == begun


def test_so_many_are_started_ahead() -> None:
    begun, may_end = list[Batch](), threading.Event()
    pipeline: Pipeline[Batch] = Pipeline("cpu", Phases(), True)
    found = pipeline.run(starting(begun, 99, may_end=may_end))
    threading.Timer(0.2, may_end.set).start()
    next(found)
    # What waits to be computed and to be used, and one of each that waits for room.
    assert settled(begun) == 1 + (RUNNING["cpu"] + 1) * 2
    found.close()


def test_who_stops_cancels_what_was_started() -> None:
    begun, may_end = list[Batch](), threading.Event()
    threads = threading.active_count()
    pipeline: Pipeline[Batch] = Pipeline("cpu", Phases(), True)
    found = pipeline.run(starting(begun, 99, may_end=may_end))
    may_end.set()
    next(found)
    may_end.clear()
    settled(begun)
    found.close()
    assert threading.active_count() == threads
    done = sum(not batch.cancelled.is_set() for batch in begun)
    assert all(batch.cancelled.is_set() for batch in begun[done:]) and len(begun) > done


@pytest.mark.parametrize("running", [0, 1])
def test_ctrl_c_while_threads_start(running: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not started need not be waited for."""
    start, starts = Ahead.start, itertools.count()

    def interrupted(thread: Ahead[Batch]) -> None:
        if next(starts) == running:
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(Ahead, "start", interrupted)
    begun, threads = list[Batch](), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        next(Pipeline[Batch]("cpu", Phases(), True).run(starting(begun, 99)))
    assert threading.active_count() == threads


@pytest.mark.parametrize("apart", [True, False])
def test_errors_come_behind_what_was_before_them(apart: bool) -> None:
    def failing() -> Generator[Batch, None, None]:
        yield from (Batch(number) for number in range(5))
        raise ValueError("line 6")

    found = list[int]()
    with pytest.raises(ValueError, match="line 6"):
        for _, output in Pipeline[Batch]("cpu", Phases(), apart).run(failing()):
            found.append(output)
    assert found == [0, -1, -2, -3, -4]


def test_a_batch_grows_while_others_are_computed() -> None:
    """A line that is not there yet is waited for, until nothing is left to compute."""
    begun, may_end = list[Batch](), threading.Event()
    pipeline: Pipeline[Batch] = Pipeline("cpu", Phases(), True)
    is_there, went_on = threading.Event(), list[bool]()

    def reading() -> Generator[Batch, None, None]:
        yield from starting(begun, 3, may_end=may_end)
        threading.Timer(0.1, is_there.set).start()
        went_on.append(pipeline.goes_on(is_there.is_set))
        may_end.set()
        went_on.append(pipeline.goes_on(lambda: False))

    assert len(list(pipeline.run(reading()))) == 3
    assert went_on == [True, False]
