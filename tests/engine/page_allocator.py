"""PageAllocator of csrc/engine/scheduler with plain lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class PoolModel:
    """reclaimed: called with each cached page that is given to somebody else."""

    def __init__(self, pages: int, reclaimed: Callable[[int], object]) -> None:
        self.reclaimed = reclaimed
        self.free = list(reversed(range(pages)))  # the last is taken first
        self.recent: list[int] = []  # cached pages without references, least recently used first
        self.references = [0] * pages
        self.cached: set[int] = set()

    @property
    def owned(self) -> list[int]:
        return [page for page, count in enumerate(self.references) if count]

    @property
    def available(self) -> int:
        return len(self.free) + len(self.recent)

    def allocate(self, count: int) -> list[int] | None:
        if count > self.available:
            return None
        pages = []
        for _ in range(count):
            if not self.free:
                page = self.recent[0]
                self.set_cached(page, False)
                self.reclaimed(page)
            pages.append(self.free.pop())
            self.references[pages[-1]] = 1
        return sorted(pages)

    def share(self, page: int) -> None:
        if page in self.recent:
            self.recent.remove(page)
        self.references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self.references[page] -= 1
            if self.references[page] == 0:
                (self.recent if page in self.cached else self.free).append(page)

    def set_cached(self, page: int, cached: bool) -> None:
        (self.cached.add if cached else self.cached.discard)(page)
        if not cached and page in self.recent:
            self.recent.remove(page)
            self.free.append(page)
