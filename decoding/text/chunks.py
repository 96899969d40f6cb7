"""Lines that are encoded many at once, and taken one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from decoding.common.phases import Phases

T = TypeVar("T")
U = TypeVar("U")

CHARACTERS = 3  # of a token, about


class Incoming(Generic[T]):
    """Items that come in lists, none of them empty, of those that are there at once; they are taken
    in chunks of so many characters.

    width: characters of an item. ready: says whether another list can be had without waiting.
    """

    def __init__(
        self, lists: Iterable[list[T]], width: Callable[[T], int], ready: Callable[[], bool]
    ) -> None:
        self._lists, self._width, self._ready = iter(lists), width, ready
        self._items: list[T] = []
        self._taken = 0  # of them

    def ready(self) -> bool:
        """Whether another item can be had without waiting."""
        return self._taken < len(self._items) or self._ready()

    def take(self, characters: float) -> list[T]:
        """The next items, of so many characters together or a little more; fewer where no other
        is there, none at the end."""
        found, total = list[T](), 0
        while not found or (total < characters and self.ready()):
            if self._taken == len(self._items):
                self._items, self._taken = next(self._lists, []), 0
            if not self._items:
                break
            begin = self._taken
            for item in islice(self._items, begin, None):
                total += 1 + self._width(item)
                self._taken += 1
                if total >= characters:
                    break
            found += self._items[begin : self._taken]
        return found


class Chunks(Generic[T, U]):
    """What `encode` makes of items, in their order; it is given about so many tokens at a time.

    lists, width, ready: as of Incoming.
    """

    def __init__(
        self,
        lists: Iterable[list[T]],
        width: Callable[[T], int],
        tokens: int,
        encode: Callable[[list[T]], list[U]],
        ready: Callable[[], bool],
        phases: Phases,
    ) -> None:
        self._items, self._encode = Incoming(lists, width, ready), encode
        self._characters, self._phases = tokens * CHARACTERS, phases
        self._left = 0  # of what is encoded

    def ready(self) -> bool:
        """Whether the next one can be had without waiting."""
        return self._left > 0 or self._items.ready()

    def __iter__(self) -> Iterator[U]:
        while True:
            with self._phases("reading"):
                chunk = self._items.take(self._characters)
            if not chunk:
                return
            with self._phases("encoding"):
                found = self._encode(chunk)
            self._left = len(found)
            for each in found:
                self._left -= 1
                yield each
