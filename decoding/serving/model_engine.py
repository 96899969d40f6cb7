"""The engine that a model keeps for its own calls of many sentences."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from decoding import _C
from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.common.progress import Cancelled, Event, raise_if_set
from decoding.engine.limits import EngineLimits
from decoding.engine.memory import available_memory
from decoding.engine.pool import WAIT
from decoding.engine.request import EngineResults
from decoding.generation.batching import ROWS
from decoding.generation.call import Call, SubBatch, Waiting
from decoding.generation.outputs import GenerateOutput
from decoding.generation.results import SubBatchResult
from decoding.serving.dispatch import Dispatcher
from decoding.serving.following import Following
from decoding.serving.planning import SHARE, UNKNOWN, allocated, call_limits, compiled, with_pages
from decoding.serving.request import RequestOutput, Waiter, engine_failed
from decoding.serving.submission import steps_alone

# Times the rows of a sub-batch that step at once; fewer where there is no memory for so many.
TIMES = {"cpu": (1,), "cuda": (2, 1)}


class ModelEngine:
    """Computes calls of generate() that have more sentences than rows: whichever ends is replaced
    by the next. Its memory grows with the calls, and threads share it.

    make: the model's method that makes a compiled engine, not yet bound.
    """

    def __init__(self, make: weakref.WeakMethod[Callable[[], _C.Engine]], device: Device) -> None:
        self._make, self._device = make, device
        self._lock = threading.Lock()
        self._engine: _C.Engine | None = None
        self._dispatcher: Dispatcher | None = None
        self._busy = 0.0  # seconds of dispatchers that are closed
        self._planned: EngineLimits | None = None  # before pages were left out for want of memory

    def takes(self, call: Call) -> bool:
        """Whether an engine computes all that the call asks for. The result heeds its `cancel`."""
        return not steps_alone(call)

    def start(self, call: Call) -> StartedCall | Waiting:
        """Submits all sentences; where the memory does not suffice, they wait for result()."""
        with self._lock:
            if not self._reserve(call):
                return Waiting(replace(call, engine=None))
            assert self._dispatcher is not None
            return StartedCall(call, self._dispatcher)

    @property
    def busy_seconds(self) -> float:
        """Seconds in which it has read prompts and stepped."""
        with self._lock:
            return self._busy + self._busy_now()

    def _busy_now(self) -> float:
        if self._dispatcher is None or not self._dispatcher.process:
            return 0.0
        with contextlib.suppress(_C.Error):  # it has failed
            seconds = self._dispatcher.stats()["seconds"]
            return float(seconds["reading"] + seconds["stepping"])
        return 0.0

    def close(self) -> None:
        """Ends after the calls that run, and gives the memory back."""
        with self._lock:
            self._close()
            self._engine = None

    def _reserve(self, call: Call) -> bool:
        """Makes sure that the engine is bound to memory for the call; False where there is none."""
        kind = self._device.type
        *more, least = TIMES[kind]
        needed = [call_limits(call, least * ROWS[kind])]
        if self._dispatcher is not None and not self._dispatcher.process:
            self._engine = self._dispatcher = self._planned = None  # those of the parent
        failed = self._dispatcher is not None and self._dispatcher.failure is not None
        if self._planned is not None and self._planned.cover(needed[0]) and not failed:
            return True
        needed[:0] = [call_limits(call, times * ROWS[kind]) for times in more]
        if self._planned is not None:
            needed.insert(0, needed[0].joined(self._planned))
        self._close()
        if self._engine is None:
            make = self._make()
            assert make is not None, "a model that is gone calls nothing"
            self._engine = make()
        engine = self._engine
        most = int((available_memory(self._device) or UNKNOWN) * SHARE[kind])
        for planned in needed:
            limits = with_pages(engine, planned, most)
            if limits is not None:
                self._bind(engine, limits)
                self._planned = planned
                return True
        return False

    def _bind(self, engine: _C.Engine, limits: EngineLimits) -> None:
        pool = allocated(engine.plan(compiled(limits))[1], self._device)
        # On a CPU memory counts once it is written: pages that a row may come to need, but seldom
        # does, are better left to who needs them than kept apart for it. So are those of a source,
        # which in a file seldom comes again: kept, it would have all pages written in the end.
        on_cpu = self._device.type == "cpu"
        caches = not on_cpu or limits.source == 0
        engine.bind(compiled(limits), pool, prefix_caching=caches, overcommit=on_cpu)
        self._dispatcher = Dispatcher(engine)
        self._end = weakref.finalize(self, self._dispatcher.close, drain=False)

    def _close(self) -> None:
        if self._dispatcher is not None:
            self._busy += self._busy_now()
            self._dispatcher.close(drain=True)
            self._end.detach()  # it keeps the dispatcher, and what that has failed with
        self._dispatcher = self._planned = None


class StartedCall:
    """A call whose sentences are on an engine."""

    waits = False

    def __init__(self, call: Call, dispatcher: Dispatcher | Following) -> None:
        self._call = call
        self._batches: list[StartedBatch] = []
        with self._cancelled_by_errors():
            for sub in call.sub_batches:
                self._batches.append(StartedBatch(sub, dispatcher))

    def result(self) -> Array | GenerateOutput:
        """As Started.result(); whatever is raised, nothing goes on."""
        with self._cancelled_by_errors():
            found = [batch.result(self._call.cancel) for batch in self._batches]
        return self._call.form.output(found)

    def cancel(self) -> None:
        """Ends what has not ended."""
        for batch in self._batches:
            batch.cancel()

    @contextmanager
    def _cancelled_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.cancel()
            raise


class StartedBatch:
    """The sentences of a sub-batch, of which an engine tells once all have ended."""

    def __init__(self, sub: SubBatch, dispatcher: Dispatcher | Following) -> None:
        self._sub, self._dispatcher = sub, dispatcher
        self._output: RequestOutput | None = None
        self._over = threading.Event()
        self.id = -1  # once they are submitted
        request = sub.request
        texts = request.batch(stream=0)
        dispatcher.submit(self, request.options, texts, max_time=request.max_time, together=True)

    def put(self, outputs: list[RequestOutput]) -> list[Waiter]:
        """Takes the end, for which no event loop waits."""
        [self._output] = outputs
        self._over.set()
        return []

    def result(self, cancel: Event | None) -> SubBatchResult:
        """Waits for all sentences. Raises decoding.Error for one that cannot go on, Cancelled where
        the event is set or the engine was closed."""
        raise_if_set(cancel)
        while not self._over.wait(None if cancel is None else WAIT):
            raise_if_set(cancel)
        output, fill = self._output, self._sub.request.fill
        if isinstance(output, BaseException):
            raise engine_failed(output)
        assert isinstance(output, _C.BatchOutput)
        if output.kind == "fault":
            raise _C.Error(output.message)
        if output.kind != "end":
            raise Cancelled("the call was cancelled")
        results = EngineResults(*output.tables(fill), fill, step_scores=[], step_logits=[])
        return SubBatchResult(self._sub.chosen, self._sub.prompt, results)

    def cancel(self) -> None:
        """Ends what has not ended."""
        self._dispatcher.cancel(self.id)
