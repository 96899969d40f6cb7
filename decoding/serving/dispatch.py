"""Takes the outputs of an engine and hands them to its requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from decoding import _C
from decoding.serving.process import OwnProcess
from decoding.serving.request import RequestOutput, Waiter, engine_failed, is_end, settle

if TYPE_CHECKING:
    import asyncio

WAIT = 0.1  # seconds, after which the thread asks whether the engine is closed
PAUSE = 0.001  # seconds between two polls while it is being closed


class Listener(Protocol):
    """Who hears of a sentence, or of those that were submitted together."""

    id: int  # the engine's number

    def put(self, outputs: list[RequestOutput]) -> Iterable[Waiter]:
        """Returns who waited for them in an event loop."""


class Dispatcher:
    """The thread that listens to an engine, and the requests that have not ended.

    engine: bound; close() ends it. The thread knows a decoding.Engine through its requests alone,
    so that one that nobody holds is collected once they have ended.
    """

    def __init__(self, engine: _C.Engine) -> None:
        self.process = OwnProcess()
        self._engine: _C.Engine | None = engine
        self._requests: dict[int, Listener] = {}
        # Reentrant: the collector may close an engine where this thread holds the lock.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)  # for who closes it
        self._closing = self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._listen, args=(engine,), name="decoding.engine", daemon=True
        )
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closing

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def submit(self, request: Listener, *given: Any, **how: Any) -> None:
        """given, how: as _C.Engine.submit takes them."""
        self.process.check()
        with self.lock:
            request.id = self._going().submit(*given, **how)
            self._requests[request.id] = request

    def check(self) -> None:
        """Raises what submit() raises, whatever the request."""
        self.process.check()
        self._going()

    def cancel(self, id: int) -> None:
        """Asks for a request's end; nothing where it has ended."""
        if not self.process:
            return
        with self.lock:
            if self._engine is not None and id in self._requests:
                self._engine.cancel(id)

    def stats(self) -> dict[str, Any]:
        self.process.check()
        with self.lock:
            return self._going().stats()

    def close(self, drain: bool) -> None:
        """Ends the engine, after its requests or, without `drain`, with them; nothing in a child of
        fork()."""
        if not self.process:
            return
        with self._changed:
            self._closing = True
            if drain:  # here, where Ctrl-C gets through, and not in the engine
                self._changed.wait_for(lambda: not self._requests)
            engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.close(drain)
        finally:  # also behind Ctrl-C
            if engine is not None:  # another one who closes it may have to wait for its ends
                self._closed = True
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _going(self) -> _C.Engine:
        """Raises ValueError for a closed engine, engine_failed() for one that has failed."""
        if self._failure is not None:
            raise engine_failed(self._failure) from self._failure
        if self._closing or self._engine is None:
            raise ValueError("the engine is closed: make another one with decoding.Engine(model)")
        return self._engine

    def _listen(self, engine: _C.Engine) -> None:
        try:
            while not self._closed:
                outputs = engine.wait(WAIT)
                self._hand_out(outputs)
                if not outputs and self._closing:  # it may have ended, and waits for nothing then
                    time.sleep(PAUSE)
            while outputs := engine.wait(0):
                self._hand_out(outputs)
            self._fail(RuntimeError("it ended without an answer"))
        except BaseException as error:  # nobody may wait for ever
            self._failure = error
            self._fail(error)

    def _hand_out(self, outputs: Sequence[tuple[int, RequestOutput]]) -> None:
        """outputs: of the requests with these ids."""
        found: dict[Listener, list[RequestOutput]] = {}
        with self.lock:
            for id, output in outputs:
                found.setdefault(self._requests[id], []).append(output)
            due = [waiter for request, own in found.items() for waiter in request.put(own)]
            self._forget(id for id, output in outputs if is_end(output))
        wake(due)

    def _fail(self, error: BaseException) -> None:
        """Ends all requests."""
        with self.lock:
            left = dict(self._requests)
            due = [waiter for request in left.values() for waiter in request.put([error])]
            self._forget(left)
        wake(due)

    def _forget(self, ids: Iterable[int]) -> None:
        for id in ids:
            del self._requests[id]
        if not self._requests:
            self._changed.notify_all()


def wake(waiters: Iterable[Waiter]) -> None:
    """Wakes each event loop once, however many of its coroutines wait."""
    futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiter in waiters:
        futures.setdefault(waiter.loop, []).append(waiter.future)
    for loop, ready in futures.items():
        with contextlib.suppress(RuntimeError):  # it is closed, with all that waited in it
            loop.call_soon_threadsafe(settle, ready)
