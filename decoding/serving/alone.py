"""Requests whose steps nobody can share: each is computed as generate() computes it, one after the
other, in a thread beside the engine's."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from decoding.common.progress import Cancelled
from decoding.generation.call import Call
from decoding.generation.streaming import Tokens, TokenStream
from decoding.serving.dispatch import wake
from decoding.serving.process import OwnProcess
from decoding.serving.request import Request
from decoding.serving.results import CallEnd


class RequestTokens(TokenStream):
    """Tells a request its tokens as they come."""

    def __init__(self, request: Request[Any]) -> None:
        self._request = request

    def emit(self, new: Tokens) -> None:
        if any(new):
            wake(self._request.put([new]))


@dataclass(eq=False)
class Work:
    """A request and its call, which looks between any two steps whether it is over.

    deadline: of time.monotonic(). stream: deliver tokens as they come. look: is called whenever the
    call looks.
    """

    request: Request[Any]
    call: Call
    priority: int
    deadline: float
    stream: bool
    look: Callable[[], None]
    cancelled: bool = False

    def is_set(self) -> bool:
        """As the event that ends the call."""
        self.look()
        event = self.call.cancel
        return self.early_end() is not None or (event is not None and event.is_set())

    def early_end(self) -> CallEnd | None:
        """How it ends before it is done; None: it goes on."""
        if self.cancelled:
            return CallEnd("cancelled")
        return CallEnd("expired") if time.monotonic() >= self.deadline else None

    def end(self) -> CallEnd:
        """Computes it."""
        listener = RequestTokens(self.request) if self.stream else self.call.listener
        try:
            return CallEnd("end", self.call.watched(listener, cancel=self).results())
        except BaseException as error:  # of any kind: it is the request's own
            early = self.early_end() if isinstance(error, Cancelled) else None
            return early or CallEnd("raised", error=error)


class Alone:
    """The thread that computes requests one after the other, those of a higher priority first.

    check: raises where nothing may be submitted any more. The thread begins with the first request,
    and knows a decoding.Engine through its requests alone.
    """

    def __init__(self, check: Callable[[], object]) -> None:
        self.process = OwnProcess()
        # Reentrant: the collector may close an engine where this thread holds the lock.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._check, self._ids = check, itertools.count()
        self._work: dict[int, Work] = {}  # that has not ended, by the requests' ids
        self._running: Work | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(
        self, request: Request[Any], call: Call, priority: int, deadline: float, stream: bool
    ) -> None:
        """deadline: seconds from now."""
        self.process.check()
        until = time.monotonic() + deadline
        with self.lock:
            self._check()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="decoding.alone", daemon=True
                )
                self._thread.start()
            request.id = next(self._ids)
            work = Work(request, call, priority, until, stream, self._end_early)
            self._work[request.id] = work
            self._changed.notify_all()

    def cancel(self, id: int) -> None:
        """Asks for a request's end; nothing where it has ended."""
        if not self.process:
            return
        with self.lock:
            if id in self._work:
                self._work[id].cancelled = True
                self._end_early()

    def stats(self) -> dict[str, int]:
        with self.lock:
            running = int(self._running is not None)
            return {"running": running, "waiting": len(self._work) - running}

    def close(self, drain: bool) -> None:
        """Ends the thread, after all requests or, without `drain`, with them; nothing in a child of
        fork(). `check` must raise by now."""
        if not self.process:
            return
        with self.lock:
            self._closing = True
            self._changed.notify_all()
            for id in [] if drain else list(self._work):
                self.cancel(id)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Waits for a request and computes it; False where none will come. Between two of them
        nothing of a request is held, since it keeps its engine."""
        with self.lock:
            self._changed.wait_for(lambda: self._work or self._closing)
            if not self._work:
                return False
            first = min(self._work.values(), key=lambda work: (-work.priority, work.request.id))
            self._running = first
        end = first.end()
        with self.lock:
            self._running = None
            self._tell(first, end)
        return True

    def _end_early(self) -> None:
        """Ends those that wait and are over: the thread looks as often as the one that runs."""
        with self.lock:
            for work in list(self._work.values()):
                end = None if work is self._running else work.early_end()
                if end is not None:
                    self._tell(work, end)

    def _tell(self, work: Work, end: CallEnd) -> None:
        del self._work[work.request.id]
        wake(work.request.put([end]))
