"""Queue, pool and prefix cache together: many requests come and go, and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from decoding._kernels import MOST_BYPASSES, PageAllocator, PrefixCache, RequestQueue, Waiting

PAGE = 16


@dataclass
class Request:
    priority: int
    salt: int
    tokens: list[int]
    is_source: bool
    own_pages: int
    steps: int  # that are left


class Lives:
    """A scheduler without a model: a step admits, writes, generates and lets go."""

    def __init__(self, seed: int, pages: int = 200, rows: int = 24) -> None:
        self.random = random.Random(seed)
        self.pool = PageAllocator(pages)
        self.cache = PrefixCache(self.pool, buckets=self.random.choice([0, 1]))
        self.queue = RequestQueue(1000)
        self.rows = rows
        self.waiting: dict[int, Request] = {}
        self.passed: Counter[int] = Counter()
        self.running: dict[int, tuple[Request, list[int]]] = {}
        self.ended = {"cancelled": 0, "expired": 0, "done": 0}
        self.now = 0

    def submit(self, number: int) -> None:
        """Some texts come often, some begin as others do; one in twenty needs half of the pool."""
        length = self.random.randint(1, 120)
        period = self.random.choice([2, 3, 1000])
        tokens = [place % period for place in range(length)]
        own = 100 if self.random.random() < 0.05 else self.random.randint(1, 12)
        is_source = self.random.random() < 0.4
        steps = self.random.randint(1, 30)
        priority = self.random.choice([0, 0, 0, 1])
        request = Request(priority, self.random.randint(0, 1), tokens, is_source, own, steps)
        pages = own + (length + PAGE - 1) // PAGE
        soon = self.random.random() < 0.1
        deadline = self.now + self.random.randint(1, 50) if soon else float("inf")
        self.queue.push(Waiting(number, priority, deadline, self.now, pages))
        self.waiting[number] = request

    def admit(self) -> None:
        def fits(waiting: Waiting) -> bool:
            return len(self.running) < self.rows and waiting.pages <= self.pool.available

        while waiting := self.queue.pop(fits):
            request = self.waiting.pop(waiting.id)
            self.pass_others(waiting.id, request.priority)
            search = self.cache.find_source if request.is_source else self.cache.find
            where = (request.salt,) if request.is_source else (request.salt, 0)  # and the table
            pages = search(*where, request.tokens) or []
            new = self.pool.allocate(waiting.pages - len(pages))
            assert new is not None, "what fits without the cache fits with it"
            self.running[waiting.id] = request, pages + new
            insert = self.cache.insert_source if request.is_source else self.cache.insert
            insert(*where, request.tokens, (pages + new)[: -request.own_pages])

    def pass_others(self, admitted: int, priority: int) -> None:
        """Nobody who came before is passed too often."""
        for number, request in self.waiting.items():
            if (request.priority, -number) > (priority, -admitted):
                self.passed[number] += 1
                assert self.passed[number] <= MOST_BYPASSES

    def cancel(self) -> None:
        """One that waits, runs, or has ended long ago."""
        number = self.random.choice([*self.waiting, *self.running, 0])
        assert self.queue.cancel(number) == (self.waiting.pop(number, None) is not None)
        if number in self.running:
            self.pool.release(self.running.pop(number)[1])
        self.ended["cancelled"] += 1

    def step(self) -> None:
        self.now += 1
        for number in self.queue.expire(self.now):
            del self.waiting[number]
            self.ended["expired"] += 1
        self.admit()
        for number, (request, pages) in list(self.running.items()):
            request.steps -= 1
            if request.steps == 0:
                self.pool.release(pages)
                del self.running[number]
                self.ended["done"] += 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost(seed: int) -> None:
    lives = Lives(seed)
    for number in range(1, 10_001):
        lives.submit(number)
        if lives.random.random() < 0.3:
            lives.cancel()
        while lives.random.random() < 0.45 or len(lives.waiting) > 900:
            lives.step()
        if number % 50 == 0:
            lives.pool.check()
    for _ in range(100_000):
        if not lives.waiting:
            break
        lives.step()
    assert not lives.waiting and len(lives.queue) == 0
    for _ in range(30):
        lives.step()
    lives.pool.check()
    assert not lives.running and lives.pool.used == 0 and min(lives.ended.values()) > 100
    assert max(lives.passed.values()) == MOST_BYPASSES
    queries, hits = lives.cache.stats
    assert 0 < hits < queries
    lives.cache.clear()
    assert lives.pool.allocate(200) == list(range(200))
