"""A request of an engine: its result, and its tokens as they come."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from decoding import _C
from decoding.common.progress import Cancelled
from decoding.generation.call import Call
from decoding.generation.outputs import GenerateOutput
from decoding.generation.streaming import Tokens
from decoding.serving.process import OwnProcess
from decoding.serving.results import engine_results, rest

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result", bound="Tensor | GenerateOutput", covariant=True)
Told = Tokens | _C.Output | BaseException  # of a request: new tokens, or its end


@dataclass(frozen=True)
class Waiter:
    """A coroutine that waits until so much has been told."""

    count: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class Request(Generic[Result]):
    """One sentence that an engine generates for: what Engine.submit() returns.

        request = engine.submit(ids, num_beams=4)
        request.result()                              # in a thread
        await request                                 # in a coroutine
        for [new] in engine.submit(ids, stream=True): # or `async for`: tokens as they come
            print(new)

    As in Model.stream() the tokens come as a list of new ones for each result. With stream=True
    they come once they are certain: at once where rows do not compete, in beam search those that
    all beams agree on; without it all of them come at the end. Several readers may iterate, each
    from the first token on, and one that leaves early holds nobody up.

    Cancelling a task that waits for the request cancels the request.
    """

    def __init__(
        self,
        call: Call,
        process: OwnProcess,
        cancel: Callable[[int], None],
        deadline: float | None,
    ) -> None:
        """cancel: asks the engine for the end of the request with that id; a method of the engine,
        which lives as long as its requests."""
        self._call, self._process, self._cancel, self._deadline = call, process, cancel, deadline
        self.id, self.sentences = -1, 1  # the engine's number of it, once it is submitted
        self._told: list[Told] = []  # the last one ends it
        self._changed = threading.Condition()
        self._waiters: list[Waiter] = []

    @property
    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return bool(self._told) and is_end(self._told[-1])

    def result(self, timeout: float | None = None) -> Result:
        """What generate() returns for this sentence alone.

        Raises what generate() would raise; decoding.Cancelled where it was cancelled; TimeoutError
        past its deadline, and, while it goes on, after `timeout` seconds.
        """
        if not self._wait(math.inf, timeout):
            raise TimeoutError(
                f"the request is not done after {timeout} seconds, and goes on: cancel() ends it"
            )
        found: Result = self._result
        return found

    def cancel(self) -> None:
        """Ends it within a few steps, unless it ends before. Afterwards it does nothing."""
        if not self.done:
            self._cancel(self.id)

    def __iter__(self) -> Iterator[Tokens]:
        counts = [0] * self._returned
        for index in itertools.count():
            self._wait(index + 1)
            tokens = self._tokens(index, counts)
            if any(tokens):
                yield tokens
            if is_end(self._told[index]):
                return

    async def __aiter__(self) -> AsyncIterator[Tokens]:
        counts = [0] * self._returned
        for index in itertools.count():
            await self._reach(index + 1)
            tokens = self._tokens(index, counts)
            if any(tokens):
                yield tokens
            if is_end(self._told[index]):
                return

    async def every(self, seconds: float) -> AsyncIterator[Tokens]:
        """Tokens as they come, but in larger pieces: the first at once, then those of so many
        seconds together, and the last at the end. It wakes its event loop as seldom."""
        counts, told = [0] * self._returned, 0
        while True:
            await self._reach(told + 1)
            last = len(self._told)
            new = [self._tokens(index, counts) for index in range(told, last)]
            told = last
            tokens = [list(itertools.chain.from_iterable(row)) for row in zip(*new, strict=True)]
            if any(tokens):
                yield tokens
            if is_end(self._told[told - 1]):
                return
            await self._reach(math.inf, seconds)

    def __await__(self) -> Generator[Any, None, Result]:
        yield from self._reach(math.inf).__await__()
        found: Result = self._result
        return found

    def __repr__(self) -> str:
        return f"Request({'done' if self.done else 'running'})"

    def tell(self, told: list[Told]) -> list[Waiter]:
        """Takes news of the engine's; returns who waited for them in an event loop."""
        due: list[Waiter] = []
        with self._changed:
            self._told += told
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                (due if self._reached(waiter.count) else self._waiters).append(waiter)
        return due

    def _reached(self, count: float) -> bool:
        return self.done or len(self._told) >= count

    def _wait(self, count: float, timeout: float | None = None) -> bool:
        """Waits until so much has been told, or it has ended; False where time is up before."""
        if self._reached(count):
            return True
        self._process.check()
        with self._changed:
            return self._changed.wait_for(lambda: self._reached(count), timeout)

    async def _reach(self, count: float, timeout: float | None = None) -> None:
        """The same in a coroutine."""
        if self._reached(count):
            return
        self._process.check()
        loop = asyncio.get_running_loop()
        waiter = Waiter(count, loop, loop.create_future())
        with self._changed:
            if self._reached(count):
                return
            self._waiters.append(waiter)
        alarm = None if timeout is None else loop.call_later(timeout, self._give_up, waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def _give_up(self, waiter: Waiter) -> None:
        """Lets a coroutine go on before what it waits for."""
        with self._changed:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if not waiter.future.done():
            waiter.future.set_result(None)

    @property
    def _returned(self) -> int:
        return self._call.strategy.returned

    def _tokens(self, index: int, counts: list[int]) -> Tokens:
        """The new tokens of each result. counts: those that came before, to which it adds."""
        told = self._told[index]
        if not isinstance(told, list):
            return rest(self._ended(told), counts)
        for row, new in enumerate(told):
            counts[row] += len(new)
        return [new.copy() for new in told]  # a reader may change its own

    @cached_property
    def _result(self) -> Any:
        [sub] = self._call.sub_batches
        found = self._call.output([engine_results(self._ended(self._told[-1]), sub)])
        return self._call.as_tensors(found)

    def _ended(self, end: Told) -> _C.Output:
        """The end that has results; raises what another one means."""
        assert not isinstance(end, list), "tokens end nothing"
        if isinstance(end, BaseException):
            raise _C.Error(f"the engine failed: {end}")
        if end.kind == "cancelled":
            raise Cancelled("the request was cancelled")
        if end.kind == "expired":
            raise TimeoutError(
                f"the request was not done within its deadline of {self._deadline} seconds"
            )
        if end.kind == "fault":
            raise _C.Error(end.message)
        return end


def is_end(told: Told) -> bool:
    return not isinstance(told, list)
