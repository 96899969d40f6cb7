"""The order in which waiting requests are served, against a model that looks at all of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from decoding import _C
from decoding import _kernels as kernels
from decoding._kernels import MOST_BYPASSES, MOST_LOOKED, RequestQueue, Waiting

LIMIT = 60
INFINITY = float("inf")
TIMES = st.integers(0, 20).map(float)


@dataclass
class Request:
    waiting: Waiting
    number: int
    bypasses: int = 0

    @property
    def place(self) -> tuple[int, float, int]:
        return -self.waiting.priority, self.waiting.arrived, self.number


class Queue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue(LIMIT)
        self.requests: list[Request] = []
        self.pushes = 0

    @rule(
        priority=st.sampled_from([0, 0, 0, 1, -(2**31), 2**31 - 1]),
        arrived=TIMES,
        deadline=st.sampled_from([3.0, 9.0, 9.0, INFINITY, -INFINITY]),
        pages=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    )
    def push(self, priority: int, arrived: float, deadline: float, pages: list[int]) -> None:
        """As many requests as there are pages."""
        for each in pages:
            waiting = Waiting(self.pushes, priority, deadline, arrived, each)
            if len(self.requests) == LIMIT:
                with pytest.raises(_C.Error, match=f"the queue is full: {LIMIT} requests"):
                    self.queue.push(waiting)
            else:
                self.queue.push(waiting)
                self.requests.append(Request(waiting, self.pushes))
                self.pushes += 1
        self.requests.sort(key=lambda request: request.place)

    def next_of(self, pages: int) -> Request | None:
        passed: list[Request] = []
        for request in self.requests[:MOST_LOOKED]:
            if request.waiting.pages <= pages:
                for each in passed:
                    each.bypasses += 1
                self.requests.remove(request)
                return request
            if request.bypasses == MOST_BYPASSES:
                return None
            passed.append(request)
        return None

    @rule(pages=st.integers(0, 9), times=st.integers(1, 2 * MOST_BYPASSES))
    def pop(self, pages: int, times: int) -> None:
        for _ in range(times):
            found = self.queue.pop(lambda waiting: waiting.pages <= pages)
            expected = self.next_of(pages)
            assert (found and found.id) == (expected and expected.waiting.id)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Also of requests that are gone or never were."""
        number = data.draw(st.integers(-1, self.pushes + 1))
        left = [request for request in self.requests if request.waiting.id != number]
        assert self.queue.cancel(number) == (len(left) < len(self.requests))
        self.requests = left

    @rule(now=TIMES)
    def expire(self, now: float) -> None:
        expired = [each.waiting for each in self.requests if each.waiting.deadline <= now]
        expected = sorted(expired, key=lambda waiting: (waiting.deadline, waiting.id))
        assert self.queue.expire(now) == [waiting.id for waiting in expected]
        self.requests = [each for each in self.requests if each.waiting not in expired]

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) == len(self.requests)


TestQueue = Queue.TestCase


def drain(queue: RequestQueue, pages: int = 2**40) -> list[int]:
    """The ids that are served while those of so many pages fit."""
    found = iter(lambda: queue.pop(lambda waiting: waiting.pages <= pages), None)
    return [waiting.id for waiting in found]


def test_priority_then_arrival() -> None:
    queue = RequestQueue(9)
    for number, (priority, arrived) in enumerate([(0, 2), (0, 1), (5, 9), (-1, 0), (0, 1)]):
        queue.push(Waiting(number, priority=priority, arrived=arrived))
    assert drain(queue) == [2, 1, 4, 0, 3]


def test_what_comes_back_is_what_was_pushed() -> None:
    queue = RequestQueue(1)
    queue.push(Waiting(2**40, -3, 7.5, 1.25, 2**33, 8))
    found = queue.pop(lambda waiting: waiting.rows == 8)
    fields = (found.id, found.priority, found.deadline, found.arrived, found.pages, found.rows)
    assert fields == (2**40, -3, 7.5, 1.25, 2**33, 8)


@given(st.integers(1, 5), st.integers(0, 2))
def test_a_large_request_is_passed_so_often_and_no_more(large: int, priority: int) -> None:
    """Small ones come for ever, of its own or of a lower priority."""
    queue = RequestQueue(200)
    for number in range(large):
        queue.push(Waiting(number, priority=2, pages=100))
    for number in range(large, 150):
        queue.push(Waiting(number, priority=priority, pages=1))
    assert drain(queue, pages=1) == list(range(large, large + MOST_BYPASSES))
    assert drain(queue, pages=1) == []
    assert drain(queue)[: large + 1] == [*range(large), large + MOST_BYPASSES]


def test_a_higher_priority_is_never_behind() -> None:
    """A request that has been passed too often blocks those behind it alone."""
    queue = RequestQueue(100)
    for number in range(1 + MOST_BYPASSES):
        queue.push(Waiting(number, pages=1 if number else 100))
    assert len(drain(queue, pages=1)) == MOST_BYPASSES
    queue.push(Waiting(1000, priority=1))
    queue.push(Waiting(1001))
    assert drain(queue, pages=1) == [1000]
    assert queue.cancel(0) and drain(queue, pages=1) == [1001]


def test_few_are_looked_at() -> None:
    queue = RequestQueue(100_000)
    for number in range(100_000):
        queue.push(Waiting(number, deadline=number + 0.5))
    looked: list[int] = []

    def fits(waiting: Waiting) -> bool:
        looked.append(waiting.id)
        return False

    assert queue.pop(fits) is None
    assert looked == list(range(MOST_LOOKED))
    assert queue.expire(3.0) == [0, 1, 2] and len(queue) == 99_997
    with pytest.raises(_C.Error, match="the queue is full: 1 requests wait, as many as may"):
        full = RequestQueue(1)
        full.push(Waiting(0))
        full.push(Waiting(1))


def test_requests_that_are_refused() -> None:
    queue = kernels.RequestQueue(3)
    queue.push(Waiting(7))
    with pytest.raises(_C.Error, match="request 7 waits already"):
        queue.push(Waiting(7, arrived=1.0))
    for times in ({"arrived": float("nan")}, {"deadline": float("nan")}):
        with pytest.raises(_C.Error, match="request 8 arrived at .*both must be numbers"):
            queue.push(Waiting(8, **times))
    with pytest.raises(_C.Error, match="room for 1 request or more, got 0"):
        RequestQueue(0)
    assert len(queue) == 1
