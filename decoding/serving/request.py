"""A request of an engine: its result, and its tokens as they come."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

from decoding import _C
from decoding.common.arrays import Array
from decoding.common.progress import Cancelled
from decoding.engine.memory import OutOfMemoryError
from decoding.generation.call import ResultForm
from decoding.generation.outputs import GenerateOutput
from decoding.generation.streaming import Tokens
from decoding.serving.process import OwnProcess
from decoding.serving.results import CallEnd, End, rest, result_of

if TYPE_CHECKING:
    import asyncio

    from torch import Tensor

Result = TypeVar("Result", bound="Tensor | GenerateOutput", covariant=True)
# Of a request: new tokens, or its end; of several that were submitted together how they ended.
RequestOutput = Tokens | End | _C.BatchOutput | BaseException


class Waiter(NamedTuple):
    """A coroutine that waits for so many outputs."""

    least: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class Owner(Protocol):
    """What a request runs on."""

    process: OwnProcess
    lock: threading.RLock  # of all its requests

    def cancel(self, id: int) -> None: ...


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

    # Thousands may live at once, and the collector visits all that they hold: so that is little.
    __slots__ = (
        "__weakref__",
        "_changed",
        "_deadline",
        "_form",
        "_keeps",
        "_owner",
        "_prompt",
        "_result",
        "_outputs",
        "_waiters",
        "id",
    )

    def __init__(
        self,
        form: ResultForm,
        prompt: Array,
        owner: Owner,
        deadline: float | None = None,
        keeps: object = None,
    ) -> None:
        """prompt: int64 [1, P], as the caller gave it. keeps: lives as long."""
        self._form, self._prompt, self._owner = form, prompt, owner
        self._deadline, self._keeps = deadline, keeps
        self.id = -1  # the engine's number of it, once it is submitted
        self._outputs: list[RequestOutput] = []  # the last one ends it
        self._result: Result | None = None  # once somebody has asked for it
        self._waiters: tuple[Waiter, ...] = ()
        self._changed: threading.Condition | None = None  # once a thread has waited

    @property
    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return bool(self._outputs) and is_end(self._outputs[-1])

    def result(self, timeout: float | None = None) -> Result:
        """What generate() returns for this sentence alone.

        Raises what generate() would raise; decoding.Cancelled where it was cancelled; TimeoutError
        past its deadline, and, while it goes on, after `timeout` seconds.
        """
        if not self._wait(math.inf, timeout):
            raise TimeoutError(
                f"the request is not done after {timeout} seconds, and goes on: cancel() ends it"
            )
        return self._found()

    async def until_done(self) -> None:
        """Waits for its end, whichever it is."""
        await self._reach(math.inf)

    async def tokens(self) -> Tokens:
        """All tokens of each result, once it has ended. Raises as result()."""
        await self._reach(math.inf)
        return rest(self._ended(self._outputs[-1]), [0] * self._returned)

    def cancel(self) -> None:
        """Ends it within a few steps, unless it ends before. Afterwards it does nothing."""
        if not self.done:
            self._owner.cancel(self.id)

    def __iter__(self) -> Iterator[Tokens]:
        counts = [0] * self._returned
        for index in itertools.count():
            self._wait(index + 1)
            tokens = self._tokens(index, index + 1, counts)
            if any(tokens):
                yield tokens
            if is_end(self._outputs[index]):
                return

    async def __aiter__(self) -> AsyncIterator[Tokens]:
        counts = [0] * self._returned
        for index in itertools.count():
            await self._reach(index + 1)
            tokens = self._tokens(index, index + 1, counts)
            if any(tokens):
                yield tokens
            if is_end(self._outputs[index]):
                return

    async def every(self, seconds: float | Callable[[], float]) -> AsyncIterator[Tokens]:
        """Tokens as they come, but in larger pieces: the first at once, then those of so many
        seconds together, and the last at the end. It wakes its event loop as seldom. seconds: or
        what says how many, after each piece."""
        counts, last = [0] * self._returned, 0
        while True:
            await self._reach(last + 1)
            first, last = last, len(self._outputs)
            tokens = self._tokens(first, last, counts)
            if any(tokens):
                yield tokens
            if is_end(self._outputs[last - 1]):
                return
            await self._reach(math.inf, seconds() if callable(seconds) else seconds)

    def __await__(self) -> Generator[Any, None, Result]:
        yield from self._reach(math.inf).__await__()
        return self._found()

    def __repr__(self) -> str:
        return f"Request({'done' if self.done else 'running'})"

    def put(self, outputs: list[RequestOutput]) -> list[Waiter]:
        """Takes outputs of the engine; returns who waited for them in an event loop."""
        with self._owner.lock:
            self._outputs += outputs
            if self._changed is not None:
                self._changed.notify_all()
            due = [waiter for waiter in self._waiters if self._reached(waiter.least)]
            if due:
                self._waiters = tuple(waiter for waiter in self._waiters if waiter not in due)
            return due

    def _reached(self, count: float) -> bool:
        return self.done or len(self._outputs) >= count

    def _wait(self, count: float, timeout: float | None = None) -> bool:
        """Waits for so many outputs, or its end; False where time is up before."""
        if self._reached(count):
            return True
        self._owner.process.check()
        with self._owner.lock:
            if self._changed is None:
                self._changed = threading.Condition(self._owner.lock)
            return self._changed.wait_for(lambda: self._reached(count), timeout)

    async def _reach(self, count: float, timeout: float | None = None) -> None:
        """The same in a coroutine."""
        import asyncio  # no other caller waits for it to be imported

        if self._reached(count):
            return
        self._owner.process.check()
        loop = asyncio.get_running_loop()
        waiter = Waiter(count, loop, loop.create_future())
        with self._owner.lock:
            if self._reached(count):
                return
            left = (each for each in self._waiters if not each.future.done())
            self._waiters = (*left, waiter)
        alarm = None if timeout is None else loop.call_later(timeout, settle, [waiter.future])
        try:
            await waiter.future
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    @property
    def _returned(self) -> int:
        return self._form.strategy.returned

    def _tokens(self, first: int, last: int, counts: list[int]) -> Tokens:
        """Each result's tokens of the outputs [first, last), in lists of the reader's own. counts:
        those that came before, to which it adds."""
        outputs: list[Any] = self._outputs[first:last]
        end = outputs.pop() if is_end(outputs[-1]) else None
        tokens = [list(itertools.chain(*new)) for new in zip(*outputs, strict=True)]
        tokens = tokens or [[] for _ in counts]
        for row, new in enumerate(tokens):
            counts[row] += len(new)
        if end is not None:
            for new, more in zip(tokens, rest(self._ended(end), counts), strict=True):
                new += more
        return tokens

    def _found(self) -> Result:
        if self._result is None:
            end = self._ended(self._outputs[-1])
            self._result = cast(Result, result_of(end, self._form, self._prompt))
        return self._result

    def _ended(self, end: RequestOutput) -> End:
        """The end that has results; raises what another one means."""
        assert not isinstance(end, list | _C.BatchOutput), "it ends no request"
        if isinstance(end, BaseException):
            raise engine_failed(end)
        if end.kind == "cancelled":
            raise Cancelled("the request was cancelled")
        if end.kind == "expired":
            raise TimeoutError(
                f"the request was not done within its deadline of {self._deadline} seconds"
            )
        if isinstance(end, CallEnd):
            if end.error is not None:
                raise end.error
        elif end.kind == "fault":
            raise _C.Error(end.message)
        return end


def engine_failed(error: BaseException) -> _C.Error:
    """What those hear whose engine could not go on."""
    kind = OutOfMemoryError if isinstance(error, MemoryError) else _C.Error
    return kind(f"the engine failed: {error}")


def settle(futures: Iterable[asyncio.Future[None]]) -> None:
    """Lets coroutines go on. For their event loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)


def is_end(output: RequestOutput) -> bool:
    return not isinstance(output, list)
