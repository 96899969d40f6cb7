"""Lines that are encoded many at once, and taken one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from decoding.common.phases import Phases

T = TypeVar("T")
U = TypeVar("U")

CHARACTERS = 3  # of a token, about


def read(
    items: Iterator[T], width: Callable[[T], int], characters: float, ready: Callable[[], bool]
) -> list[T]:
    """The next items, of so many characters together or a little more; fewer where no other item
    is there, none at the end. width: the characters of one."""
    found, total = list[T](), 0
    for item in items:
        found.append(item)
        total += 1 + width(item)
        if total >= characters or not ready():
            break
    return found


class Chunks(Generic[T, U]):
    """What `encode` makes of items, in their order; it is given about so many tokens at a time.

    width: characters of an item. ready: says whether another item can be had without waiting.
    """

    def __init__(
        self,
        items: Iterable[T],
        width: Callable[[T], int],
        tokens: int,
        encode: Callable[[list[T]], list[U]],
        ready: Callable[[], bool],
        phases: Phases,
    ) -> None:
        self._items, self._width, self._encode = iter(items), width, encode
        self._characters, self._ready, self._phases = tokens * CHARACTERS, ready, phases
        self._left = 0  # of what is encoded

    def ready(self) -> bool:
        """Whether the next one can be had without waiting."""
        return self._left > 0 or self._ready()

    def __iter__(self) -> Iterator[U]:
        while True:
            with self._phases("reading"):
                chunk = read(self._items, self._width, self._characters, self._ready)
            if not chunk:
                return
            with self._phases("encoding"):
                found = self._encode(chunk)
            self._left = len(found)
            for each in found:
                self._left -= 1
                yield each
