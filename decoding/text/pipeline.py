"""Batches that are read, computed and written side by side."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from decoding.common.phases import Phases
from decoding.generation.batching import ROWS

# Times the rows of a sub-batch: so many are given to an engine ahead. One on a GPU steps twice as
# many at once, and one long result holds back the batches behind its own for as long as thousands
# of others take.
RUNNING = {"cpu": 4, "cuda": 32}
LOOK = 0.005  # seconds between two looks whether another line is there
JOIN = 1.0  # seconds to wait for a thread, which may itself wait for who writes the input

T = TypeVar("T")


class Batch(Protocol):
    """A call of the model that has been started."""

    @property
    def rows(self) -> int:
        """Rows that an engine computes for it."""

    def output(self) -> Any:
        """What the model gives; computes it, or waits for it."""

    def cancel(self) -> None:
        """Ends it, where nobody asks for its output any more."""


B = TypeVar("B", bound=Batch)


class Ahead(Generic[T]):
    """An iterator's items, taken by a thread of its own before they are asked for.

    room: the size of what may wait, one item always may. size: of an item. An exception of the
    iterator comes behind the items before it.
    """

    def __init__(self, items: Generator[T, None, None], room: int, size: Callable[[T], int]):
        self._items, self._room, self._size = items, room, size
        self._waiting: deque[T] = deque()
        self._held = 0
        self._ended = self._stopped = self._asked = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._take, name="decoding.text", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for an item, and none is there."""
        return self._asked and not self._waiting

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._asked = not self._waiting
            self._changed.wait_for(lambda: self._waiting or self._ended)
            self._asked = False
            if self._waiting:
                item = self._waiting.popleft()
                self._held -= self._size(item)
                self._changed.notify_all()
                return item
        if self._error is not None:
            raise self._error
        raise StopIteration

    def stop(self) -> None:
        """Takes no more items; the iterator is closed in its thread."""
        with self._changed:
            self._stopped = self._ended = True
            self._changed.notify_all()

    def join(self) -> None:
        """Waits for the end of the thread, if it runs, behind stop()."""
        if self._thread.is_alive():
            self._thread.join(JOIN)

    def _take(self) -> None:
        try:
            for item in self._items:
                if not self._put(item):
                    break
        except BaseException as error:
            self._error = error
        finally:
            self._items.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, item: T) -> bool:
        """Waits for room; False where nobody wants the item any more."""
        size = self._size(item)
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or not self._waiting or self._held + size <= self._room
            )
            if not self._stopped:
                self._waiting.append(item)
                self._held += size
                self._changed.notify_all()
            return not self._stopped


class Pipeline(Generic[B]):
    """Batches and their outputs, in order. One thread reads and starts batches, a second has each
    computed, and who iterates decodes and writes.

    device: its type. apart: False has all done by who iterates, one batch after the other.
    """

    def __init__(self, device: str, phases: Phases, apart: bool) -> None:
        self._room, self._phases, self._apart = RUNNING[device] * ROWS[device], phases, apart
        self._ahead: Ahead[B] | None = None
        self._begun: set[B] = set()

    def goes_on(self, ready: Callable[[], bool]) -> bool:
        """Whether a batch may become larger: waits for another line as long as others are computed.

        ready: says whether another line is there.
        """
        while not ready():
            if self._ahead is None or self._ahead.is_short:
                return False
            time.sleep(LOOK)
        return True

    def run(self, batches: Generator[B, None, None]) -> Generator[tuple[B, Any], None, None]:
        """Where the caller stops, or an error is raised, what was started is cancelled."""
        if not self._apart:
            yield from self._outputs(self._started(batches))
            return
        self._ahead = Ahead(self._started(batches), self._room, lambda batch: batch.rows)
        found = Ahead(self._outputs(self._ahead), self._room, lambda pair: pair[0].rows)
        threads = (self._ahead, found)
        end = weakref.finalize(self, stop, threads, self._begun)  # also where the program ends
        try:
            for thread in threads:  # once each can be asked
                thread.start()
            yield from found
        finally:
            end()

    def _started(self, batches: Generator[B, None, None]) -> Generator[B, None, None]:
        for batch in batches:
            self._begun.add(batch)
            try:
                yield batch
            except GeneratorExit:
                batch.cancel()
                raise

    def _outputs(self, batches: Iterator[B]) -> Generator[tuple[B, Any], None, None]:
        for batch in batches:
            with self._phases("device"):
                output = batch.output()
            self._begun.discard(batch)
            yield batch, output


def stop(threads: Sequence[Ahead[Any]], begun: Collection[Batch]) -> None:
    """Ends threads and what they have begun."""
    for thread in threads:
        thread.stop()
    for batch in list(begun):
        batch.cancel()
    for thread in threads:
        thread.join()
