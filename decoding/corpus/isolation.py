"""Finds the rows that make a call fail, so that all others have their answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from decoding.corpus.row_task import Answer, Answerer, Failed

ROWS_FAULT = (ValueError, TypeError)  # that a row is to blame for


class Isolated:
    """An answerer whose exceptions are answers of the rows that are to blame.

    lock: to be entered by who asks, so that only an answerer that is shared is asked by several
    threads at once.

    An exception that may be the device's is a row's where the row that was answered last can be
    answered again; else it is raised, as are OSError and MemoryError.
    """

    def __init__(self, answerer: Answerer) -> None:
        self.read = answerer.read
        self.lock: AbstractContextManager[Any] = (
            nullcontext() if answerer.is_shared else threading.Lock()
        )
        self._answerer = answerer
        self._sound: tuple[Any, int] | None = None

    def __call__(
        self, given: Sequence[Any], numbers: Sequence[int]
    ) -> Iterator[Sequence[Answer | Failed]]:
        parts = [(0, len(given))] if given else []
        while parts:
            begin, end = parts.pop()
            try:
                for found in self._answerer(given[begin:end], numbers[begin:end]):
                    yield found
                    begin += len(found)
                    self._remember(given[begin - 1], numbers[begin - 1], found)
            except (OSError, MemoryError):
                raise
            except Exception as error:
                if end - begin == 1:
                    yield [self._blamed(error)]
                else:
                    middle = (begin + end) // 2
                    parts += [(middle, end), (begin, middle)]

    def _remember(self, asked: Any, number: int, found: Sequence[Answer | Failed]) -> None:
        if not isinstance(found[-1], Failed):
            self._sound = asked, number

    def _blamed(self, error: Exception) -> Failed:
        if not isinstance(error, ROWS_FAULT):
            if self._sound is None:
                raise error
            asked, number = self._sound
            list(self._answerer([asked], [number]))  # raises where the device is to blame
        return Failed(" ".join(str(error).split()) or type(error).__name__)
