"""Pages found again by their tokens, against a model of dicts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from decoding import _C
from decoding import _kernels as kernels
from decoding._kernels import PageAllocator, PrefixCache
from tests.engine.page_allocator import PoolModel

PAGE = 16
SOURCE, STARTS = -1, (-2, -3, -4)  # parents that are no entries; starts: of prompts, by table
Tokens = tuple[int, ...]


def pages_of(tokens: Tokens) -> list[Tokens]:
    return [tokens[begin : begin + PAGE] for begin in range(0, len(tokens), PAGE)]


class Key(NamedTuple):
    parent: int  # number of an entry, or one of STARTS, or SOURCE
    salt: int
    tokens: Tokens


class CacheModel:
    """Entries by their whole keys. It shares a pool's model and forgets what that reclaims."""

    def __init__(self, pages: int) -> None:
        self.pool = PoolModel(pages, self.forget)
        self.entries: dict[Key, tuple[int, list[int]]] = {}  # a number, and the pages
        self.keys: dict[int, Key] = {}  # by page
        self.newest = 0
        self.stats = [0, 0]  # tokens that were looked for, and found

    def forget(self, page: int) -> None:
        if page in self.keys:
            for each in self.entries.pop(self.keys[page])[1]:
                del self.keys[each]
                self.pool.set_cached(each, False)

    def remember(self, key: Key, pages: list[int]) -> int:
        """The number of the entry, which is not made twice."""
        if key not in self.entries:
            for page in pages:
                self.forget(page)
            self.newest += 1
            self.entries[key] = self.newest, pages
            for page in pages:
                self.keys[page] = key
                self.pool.set_cached(page, True)
        return self.entries[key][0]

    def take(self, pages: list[int], queries: int, hits: int) -> list[int]:
        for page in pages:
            self.pool.share(page)
        self.stats = [self.stats[0] + queries, self.stats[1] + hits]
        return pages

    def find(self, salt: int, table: int, tokens: Tokens) -> list[int]:
        parent, found = STARTS[table], []
        for part in pages_of(tokens):
            if len(part) < PAGE or (key := Key(parent, salt, part)) not in self.entries:
                break
            parent, pages = self.entries[key]
            found += pages
        return self.take(found, len(tokens), PAGE * len(found))

    def insert(self, salt: int, table: int, tokens: Tokens, pages: list[int]) -> None:
        parent = STARTS[table]
        for part, page in zip(pages_of(tokens), pages, strict=False):
            if len(part) == PAGE:
                parent = self.remember(Key(parent, salt, part), [page])

    def find_source(self, salt: int, tokens: Tokens) -> list[int]:
        _, pages = self.entries.get(Key(SOURCE, salt, tokens), (0, []))
        return self.take(pages, len(tokens), len(tokens) if pages else 0)


class Request(NamedTuple):
    salt: int
    table: int
    tokens: Tokens
    pages: list[int]
    is_source: bool


# A page of tokens differs from others in its first or last token alone.
PARTS = st.sampled_from([(a, *[9] * 14, b) for a, b in ((1, 1), (1, 2), (2, 1))])
TEXTS = st.builds(
    lambda parts, rest: (*(token for part in parts for token in part), *rest),
    st.lists(PARTS, max_size=4),
    st.lists(st.integers(1, 2), min_size=1, max_size=PAGE),
)


class Cache(RuleBasedStateMachine):
    """A failure prints the calls that led to it."""

    @initialize(pages=st.integers(1, 16), buckets=st.sampled_from([0, 1, 2]))
    def make(self, pages: int, buckets: int) -> None:
        """buckets=1: all hashes collide."""
        self.pool = PageAllocator(pages)
        self.cache = PrefixCache(self.pool, buckets=buckets)
        self.model = CacheModel(pages)
        self.requests: list[Request] = []
        self.written: dict[int, Hashable] = {}  # what the keys and values of a page depend on

    def depends_on(self, request: Request, page: int) -> Hashable:
        end = len(request.tokens) if request.is_source else PAGE * (page + 1)
        keys = request.is_source, request.salt, request.table
        return *keys, request.tokens[:end], page * request.is_source

    @rule(salt=st.integers(0, 1), table=st.integers(0, 2), tokens=TEXTS, is_source=st.booleans())
    def begin(self, salt: int, table: int, tokens: Tokens, is_source: bool) -> None:
        """A request looks for its pages and writes the others, if there are enough."""
        table *= not is_source
        if is_source:
            found = self.cache.find_source(salt, tokens) or []
            assert found == self.model.find_source(salt, tokens)
        else:
            found = self.cache.find(salt, table, tokens)
            assert found == self.model.find(salt, table, tokens)
        request = Request(salt, table, tokens, list(found), is_source)
        for place, page in enumerate(found):
            assert self.written[page] == self.depends_on(request, place)
        missing = len(pages_of(tokens)) - len(found)
        new = self.pool.allocate(missing)
        assert new == self.model.pool.allocate(missing)
        if new is None:
            self.pool.release(found)
            self.model.pool.release(found)
            return
        request.pages.extend(new)
        for place in range(len(found), len(request.pages)):
            self.written[request.pages[place]] = self.depends_on(request, place)
        self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        """Also twice, and also only the beginning of a prompt."""
        request = data.draw(st.sampled_from(self.requests))
        if request.is_source:
            self.cache.insert_source(request.salt, request.tokens, request.pages)
            self.model.remember(Key(SOURCE, request.salt, request.tokens), request.pages)
        else:
            tokens = request.tokens[: data.draw(st.sampled_from([1000, PAGE, 2 * PAGE + 1]))]
            self.cache.insert(request.salt, request.table, tokens, request.pages)
            self.model.insert(request.salt, request.table, tokens, request.pages)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.requests) - 1))
        pages = self.requests.pop(place).pages
        self.pool.release(pages)
        self.model.pool.release(pages)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        for page in sorted(self.model.keys):
            self.model.forget(page)

    @invariant()
    def is_sound(self) -> None:
        self.pool.check()
        assert self.pool.available == self.model.pool.available
        assert list(self.cache.stats) == self.model.stats

    def teardown(self) -> None:
        """Nothing is lost, and what was found was what had been written."""
        for request in self.requests:
            self.pool.release(request.pages)
        assert self.pool.available == self.pool.total
        assert self.pool.allocate(self.pool.total) == list(range(self.pool.total))


TestCache = Cache.TestCase


def texts(*pages: int, rest: int = 0) -> list[int]:
    """Full pages of one token each, and some more tokens."""
    return [page for page in pages for _ in range(PAGE)] + [0] * rest


def remembered(
    cache: PrefixCache, pool: PageAllocator, tokens: list[int], salt: int = 0
) -> list[int]:
    """The pages of a prompt that has ended."""
    pages: list[int] = pool.allocate(len(pages_of(tuple(tokens))))
    cache.insert(salt, 0, tokens, pages)
    pool.release(pages)
    return pages


def found(cache: PrefixCache, pool: PageAllocator, tokens: list[int], salt: int = 0) -> list[int]:
    pages: list[int] = cache.find(salt, 0, tokens)
    pool.release(pages)
    return pages


@pytest.mark.parametrize("buckets", [0, 1])
def test_full_pages_of_a_prompt_are_found(buckets: int) -> None:
    pool = PageAllocator(20)
    cache = PrefixCache(pool, buckets=buckets)
    first = remembered(cache, pool, texts(1, 2, 3, rest=5))
    assert pool.available == 20
    assert found(cache, pool, texts(1, 2, 3, 4)) == first[:3]
    assert found(cache, pool, texts(1, 2, 3)[:-1]) == first[:2]
    assert found(cache, pool, texts(2, 3)) == found(cache, pool, texts(1)[1:]) == []
    assert found(cache, pool, texts(1, 2), salt=1) == found(cache, pool, texts(1), salt=2**63) == []
    other = remembered(cache, pool, texts(1, 2, 7))
    assert found(cache, pool, texts(1, 2, 7)) == [*first[:2], other[2]]
    assert cache.stats == (64 + 47 + 32 + 15 + 32 + 16 + 48, (3 + 2 + 3) * PAGE)


def test_a_prompt_is_reclaimed_from_its_end() -> None:
    pool = PageAllocator(6)
    cache = PrefixCache(pool)
    first, second = (remembered(cache, pool, texts(page, page, page)) for page in (1, 2))
    assert found(cache, pool, texts(1)) == first[:1]  # its first page is now the newest
    pool.release(pool.allocate(2))
    assert found(cache, pool, texts(1, 1, 1)) == first[:1]
    assert found(cache, pool, texts(2, 2, 2)) == second


@pytest.mark.parametrize("buckets", [0, 1])
def test_a_page_behind_a_forgotten_one_is_not_found(buckets: int) -> None:
    """Its parent's page may have other tokens by then."""
    pool = PageAllocator(5)
    cache = PrefixCache(pool, buckets=buckets)
    ended, goes_on = pool.allocate(2), pool.allocate(3)
    cache.insert(0, 0, texts(1, 2), ended)
    cache.insert(0, 0, texts(1, 2, 3), goes_on)  # its third page follows those that came first
    pool.release(ended)
    assert found(cache, pool, texts(1, 2, 3)) == [*ended, goes_on[2]]
    assert pool.allocate(2) == ended
    cache.insert(0, 0, texts(8, 9), ended)
    assert found(cache, pool, texts(8, 9, 3)) == ended
    assert found(cache, pool, texts(1, 2, 3)) == []
    cache.insert(0, 0, texts(1, 2, 3), goes_on)
    assert found(cache, pool, texts(1, 2, 3)) == goes_on
    assert found(cache, pool, texts(8, 9, 3)) == ended
    assert found(cache, pool, texts(7)) == []
    pool.check()


@pytest.mark.parametrize("buckets", [0, 1])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_a_source_is_found_whole(length: int, buckets: int) -> None:
    pool = PageAllocator(9)
    cache = PrefixCache(pool, buckets=buckets)
    source = list(range(length))
    pages = pool.allocate((length + PAGE - 1) // PAGE)
    cache.insert_source(3, source, pages)
    cache.insert_source(3, source, pool.allocate(len(pages)))  # the first stays
    assert cache.find_source(3, source) == pages
    for other in (source[:-1], [*source, 0], [*source[:-1], -1], [-1, *source[1:]]):
        assert cache.find_source(3, other) is None
    assert cache.find_source(4, source) is None
    assert cache.find(3, 0, source) == []
    assert cache.stats == (7 * length, length)


def test_a_source_without_one_of_its_pages_is_forgotten() -> None:
    pool = PageAllocator(3)
    cache = PrefixCache(pool)
    pages = pool.allocate(3)
    cache.insert_source(0, texts(1, 2, 3), pages)
    pool.release(pages)
    assert len(pool.allocate(1)) == 1 and pool.available == 2
    assert cache.find_source(0, texts(1, 2, 3)) is None
    pool.check()


def test_off_by_one_switch() -> None:
    pool = PageAllocator(4)
    cache = PrefixCache(pool, enabled=False)
    assert remembered(cache, pool, texts(1, 2)) and found(cache, pool, texts(1, 2)) == []
    pages = pool.allocate(2)
    cache.insert_source(0, texts(1, 2), pages)
    assert cache.find_source(0, texts(1, 2)) is None
    assert cache.stats == (0, 0)


def test_pages_outlive_the_cache() -> None:
    pool = PageAllocator(4)
    cache = PrefixCache(pool)
    remembered(cache, pool, texts(1, 2))
    owned = pool.allocate(1)
    cache.insert(0, 0, texts(5), owned)
    del cache
    pool.check()
    assert pool.allocate(3) is not None and pool.used == 4


def test_misuse() -> None:
    pool = PageAllocator(4)
    cache = kernels.PrefixCache(pool)
    with pytest.raises(_C.Error, match="33 tokens fill 2 pages, got 1"):
        cache.insert(0, 0, texts(1, 2, rest=1), pool.allocate(1))
    with pytest.raises(_C.Error, match="page 3 is not owned"):
        cache.insert(0, 0, texts(1), [3])
    with pytest.raises(_C.Error, match="page must be 0 to 3, got 4"):
        cache.insert_source(0, [1], [4])
    with pytest.raises(_C.Error, match="a source of 17 tokens takes 2 pages, got 3"):
        cache.insert_source(0, list(range(17)), [0, 1, 2])
    with pytest.raises(_C.Error, match="a source must have a token or more"):
        cache.insert_source(0, [], [])
    with pytest.raises(_C.Error, match="1 bucket or more.*got -1"):
        PrefixCache(pool, buckets=-1)
    pool.check()
