"""Requests that get their pages as they grow, with a runner that only knows pages: what each has
written it reads again in every step, wherever it was swapped meanwhile, and all come to their end.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from decoding._kernels import Overcommit, PageAllocator

PAGE = 16
AHEAD = 2  # steps after which a GPU's host hears of an end


@dataclass
class Request:
    id: int
    rows: int
    before: int
    steps: int  # at most
    ends: int  # after so many
    shared: int
    made: int = 0
    told: int = AHEAD  # steps until its end is told
    pages: list[int] = field(default_factory=list)  # its table
    runs: bool = False

    @property
    def ended(self) -> bool:
        return self.made == self.ends


class Runner:
    """Steps requests as a GPU does, whose ends the host hears of later."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.pool: dict[int, dict[int, tuple[int, int]]] = {}  # what a page's cells hold
        self.host: dict[int, dict[int, tuple[int, int]]] = {}

    def join(self, request: Request, pages: list[int]) -> None:
        self.requests[request.id] = request
        request.runs, request.pages = True, pages
        for cell in range(request.rows * request.before):
            self.write(request, cell)

    def extend(self, id: int, first: int, pages: list[int]) -> None:
        assert len(self.requests[id].pages) == first
        self.requests[id].pages += pages

    def pause(self, id: int) -> bool:
        request = self.requests[id]
        assert request.runs
        request.runs = request.ended
        return not request.ended

    def resume(self, id: int, steps: int, pages: list[int]) -> None:
        request = self.requests[id]
        assert not request.runs and request.made == steps
        request.runs, request.pages = True, pages

    def save(self, pages: list[int], to: list[int]) -> None:
        assert len(pages) == len(to)
        self.host |= {number: dict(self.pool[page]) for page, number in zip(pages, to, strict=True)}

    def restore(self, saved: list[int], pages: list[int]) -> None:
        self.pool |= {page: dict(self.host[n]) for n, page in zip(saved, pages, strict=True)}

    def step(self) -> bool:
        running = [request for request in self.requests.values() if request.runs]
        for request in running:
            if request.ended:
                request.told -= 1
                continue
            first = request.rows * (request.before + request.made)
            for cell in range(first, first + request.rows):
                self.write(request, cell)
            for cell in range(first + request.rows):
                page = self.pool[request.pages[cell // PAGE]]
                assert page[cell % PAGE] == (request.id, cell)
            request.made += 1
        return bool(running)

    def write(self, request: Request, cell: int) -> None:
        page = self.pool.setdefault(request.pages[cell // PAGE], {})
        page[cell % PAGE] = (request.id, cell)


class Lives:
    """A scheduler: it admits, lets join, steps and hears who has ended."""

    def __init__(self, seed: int, pages: int = 40) -> None:
        self.random = random.Random(seed)
        self.pages = PageAllocator(pages)
        self.runner = Runner()
        self.overcommit = Overcommit(self.pages, self.runner)
        self.waiting: deque[Request] = deque()
        self.ahead: deque[Request] = deque()
        self.order: list[int] = []  # that have joined, the oldest first

    def submit(self, id: int) -> None:
        rows, before = self.random.choice([1, 1, 2, 3, 4, 5, 8]), self.random.choice([0, 0, 1, 17])
        longest = (self.pages.total - 5) * PAGE // rows - before
        steps = self.random.randint(1, longest if self.random.random() < 0.1 else min(60, longest))
        ends = self.random.choice([steps, self.random.randint(1, steps)])
        shared = self.random.randint(0, 5)
        self.waiting.append(Request(id, rows, before, steps, ends, shared))

    def turn(self) -> None:
        self.overcommit.resume()
        while self.waiting and self.overcommit.admits(*size(self.waiting[0])):
            request = self.waiting.popleft()
            self.overcommit.admit(request.id, *size(request))
            self.ahead.append(request)
        while self.ahead and self.overcommit.may_join(self.ahead[0].id):
            request = self.ahead.popleft()
            self.runner.join(request, self.overcommit.join(request.id))
            self.order.append(request.id)
        self.step()
        for id in [id for id in self.order if self.runner.requests[id].told == 0]:
            self.end(id)

    def step(self) -> None:
        """The oldest that runs goes on, unless others have ended whose pages it waits for."""
        joined = [self.runner.requests[id] for id in self.order]
        running = [request for request in joined if request.runs and not request.ended]
        assert running or not joined or any(request.ended for request in joined)
        made = running[0].made if running else 0
        self.overcommit.step()
        if running and not any(request.ended and request is not running[0] for request in joined):
            assert running[0].made == made + 1

    def end(self, id: int) -> None:
        self.overcommit.end(id)
        self.order.remove(id)
        del self.runner.requests[id]

    def cancel(self) -> None:
        if not self.order:
            return
        id = self.random.choice(self.order)
        if self.overcommit.leave(id):
            self.end(id)


def size(request: Request) -> tuple[int, int, int, int]:
    return request.rows, request.before, request.steps, request.shared


@pytest.mark.parametrize("seed", range(4))
def test_all_come_to_their_end(seed: int) -> None:
    lives = Lives(seed)
    for number in range(600):
        lives.submit(number)
        if lives.random.random() < 0.1:
            lives.cancel()
        while lives.random.random() < 0.7 or len(lives.waiting) > 20:
            lives.turn()
        lives.pages.check()
    for _ in range(20_000):
        lives.turn()
    assert not lives.waiting and not lives.ahead and not lives.order
    assert lives.pages.used == 0
    swapped, swaps, copied = lives.overcommit.stats
    assert swapped == 0 and swaps > 50 and copied > swaps
    assert len(lives.runner.host) < 3 * lives.pages.total  # the host's pages are used again
