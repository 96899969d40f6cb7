"""The pool's pages, against a model of lists."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from decoding import _C
from decoding import _kernels as kernels
from tests.engine.page_allocator import PoolModel


class Pool(RuleBasedStateMachine):
    """Every answer of the pool is that of the model; a failure prints the calls that led to it."""

    @initialize(pages=st.integers(0, 12))
    def make(self, pages: int) -> None:
        self.pool = kernels.PageAllocator(pages)
        self.pool.on_reclaim(self.reclaimed)
        self.told: list[int] = []
        self.expected: list[int] = []
        self.model = PoolModel(pages, self.expected.append)

    def reclaimed(self, page: int) -> None:
        assert self.pool.references(page) == 0
        self.told.append(page)

    @rule(count=st.integers(0, 8))
    def allocate(self, count: int) -> None:
        assert self.pool.allocate(count) == self.model.allocate(count)
        assert self.told == self.expected

    @precondition(lambda self: self.model.owned)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.model.owned))
        self.pool.release(page)
        self.model.release([page])

    @rule(data=st.data())
    def release_some(self, data: st.DataObject) -> None:
        pages = data.draw(st.permutations(self.model.owned))[: data.draw(st.integers(0, 5))]
        self.pool.release(pages)
        self.model.release(pages)

    @precondition(lambda self: self.model.owned or self.model.recent)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.model.owned + self.model.recent))
        self.pool.share(page)
        self.model.share(page)

    @precondition(lambda self: self.model.owned)
    @rule(data=st.data())
    def cache(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.model.owned))
        self.pool.set_cached(page, True)
        self.model.set_cached(page, True)

    @precondition(lambda self: self.model.cached)
    @rule(data=st.data())
    def uncache(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.model.cached)))
        self.pool.set_cached(page, False)
        self.model.set_cached(page, False)

    @precondition(lambda self: self.model.free)
    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.model.free))
        for call in (self.pool.share, self.pool.release):
            with pytest.raises(_C.Error, match=f"page {page} "):
                call(page)
        with pytest.raises(_C.Error, match=f"page {page} is free"):
            self.pool.set_cached(page, True)

    @invariant()
    def is_sound(self) -> None:
        self.pool.check()
        references = [self.pool.references(page) for page in range(self.pool.total)]
        assert references == self.model.references
        assert self.pool.available == self.model.available
        assert self.pool.used == len(self.model.owned)

    def teardown(self) -> None:
        """Nothing is lost: all pages can be allocated once more."""
        counts = enumerate(self.model.references)
        self.pool.release([page for page, count in counts for _ in range(count)])
        assert self.pool.allocate(self.pool.total) == list(range(self.pool.total))


TestPool = Pool.TestCase


def test_lists_of_a_fresh_pool_are_neighbours() -> None:
    """Also those that are allocated after a list was released."""
    pool = kernels.PageAllocator(100)
    first, second = pool.allocate(10), pool.allocate(30)
    assert first == list(range(10)) and second == list(range(10, 40))
    pool.release(first)
    assert pool.allocate(5) == list(range(5))
    assert pool.allocate(15) == [*range(5, 10), *range(40, 50)]


def test_the_least_recently_used_page_is_reclaimed_first() -> None:
    """Pages of a list from its end; a page that is shared in between counts as used."""
    pool = kernels.PageAllocator(4)
    reclaimed: list[int] = []
    pool.on_reclaim(reclaimed.append)
    pages = pool.allocate(4)
    for page in pages:
        pool.set_cached(page, True)
    pool.release(pages[2:])
    pool.release(pages[:2])
    pool.share(3)
    pool.release(3)
    assert pool.available == 4 and pool.allocate(3) == [0, 1, 2] and reclaimed == [2, 1, 0]
    assert pool.allocate(2) is None and reclaimed == [2, 1, 0]
    assert pool.allocate(1) == [3] and reclaimed == [2, 1, 0, 3]


def test_pages_that_are_none() -> None:
    pool = kernels.PageAllocator(3)
    for page in (-1, 3):
        for call in (pool.share, pool.release, pool.references):
            with pytest.raises(_C.Error, match=f"page must be 0 to 2, got {page}"):
                call(page)
    with pytest.raises(_C.Error, match="0 pages or more can be allocated, got -1"):
        pool.allocate(-1)
    with pytest.raises(_C.Error, match="a pool must have 0 pages or more, got -1"):
        kernels.PageAllocator(-1)
