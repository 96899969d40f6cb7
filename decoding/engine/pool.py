"""The engine of one model, its one block of memory, and the queue of its callers."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from decoding import _C
from decoding.common.device import Device, torch_cuda
from decoding.common.progress import Event, raise_if_set
from decoding.engine.allocation import empty
from decoding.engine.limits import LEAST, Limits
from decoding.engine.memory import (
    MemoryPlan,
    OutOfMemoryError,
    available_memory,
    available_text,
    readable,
)
from decoding.models.weights.dtypes import Stored

logger = logging.getLogger("decoding")

SPARE = 4  # times the need of a call: at most so much is planned to serve other shapes too
WAIT = 0.05  # seconds, between two looks at the event of a call that waits
SENTENCE = 64  # tokens that memory_plan() plans for before the first call


def engine_limits(limits: Limits) -> _C.Limits:
    return _C.Limits(
        batch=limits.batch,
        beams=limits.beams,
        source=limits.source,
        prompt=limits.prompt,
        target=limits.target,
        candidates=limits.candidates,
        finished=limits.finished,
        controls=limits.controls,
        attentions=limits.attentions,
        hidden=limits.hidden,
        phrases=limits.phrases,
        shortlist=limits.shortlist,
        labels=limits.labels,
    )


class Engine(Protocol):
    """The methods that engines of all kinds of models have; see _C.Session."""

    threads: int
    isa: str

    def plan(self, limits: _C.Limits) -> tuple[list[_C.Buffer], int]: ...
    def bind(self, limits: _C.Limits, pool: Stored) -> None: ...
    def overflow(self) -> list[tuple[str, float, int]]: ...


class PooledEngine(ABC):
    """Runs one sub-batch at a time; callers of other threads wait for their turn.

    engine: made on `device`. limits: plans the memory once, here, and refuses larger calls; None:
    the plan follows each request, in buckets, and the pool grows to the largest so far. It never
    shrinks.
    """

    _engine: Engine

    def __init__(self, engine: Engine, *, device: Device, limits: Limits | None) -> None:
        self.device = device
        self.limits = limits
        self._engine = engine
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._owner: int | None = None  # the thread whose turn it is
        self.busy_seconds = 0.0  # in which it has computed
        self._bound: Limits | None = None
        self._reserved: Limits | None = None  # the needs of the last call
        self._pool = empty(0, device)
        if limits is not None:
            self._bind(limits)

    @property
    def threads(self) -> int:
        return self._engine.threads

    @property
    def isa(self) -> str:
        return self._engine.isa

    @property
    def graph_nodes(self) -> int:
        return 0

    def overflow(self) -> list[tuple[str, float, int]]:
        """See _C.Session."""
        with self._own_turn():
            return self._engine.overflow()

    @abstractmethod
    def _bucket(self, needed: Limits) -> Limits:
        """`needed`, rounded up, but not beyond the model's own tables."""

    @contextmanager
    def _own_turn(self, cancel: Event | None = None) -> Iterator[None]:
        """Waits for the engine; raises Cancelled where the call is cancelled meanwhile, and
        decoding.Error for a function of the call whose turn it is, which would wait for ever."""
        if self._owner == threading.get_ident():
            raise _C.Error(
                "a function of a call cannot ask the model that runs the call: load the model "
                "twice, and ask the other one"
            )
        while not self._turn.acquire(timeout=-1 if cancel is None else WAIT):
            raise_if_set(cancel)
        self._owner = threading.get_ident()
        begin = time.perf_counter()
        try:
            raise_if_set(cancel)
            yield
        finally:
            self._owner = None
            self.busy_seconds += time.perf_counter() - begin
            self._turn.release()

    def _stream(self) -> int:
        """The caller's current stream on the model's GPU: torch's where the process uses it, else
        the default one. Raises decoding.Error in a child of fork()."""
        if self.device.type == "cpu":
            return 0
        if os.getpid() != self._process:
            raise _C.Error(
                "this model was loaded before the process forked, and a child of fork() cannot use "
                'CUDA: start the process with "spawn", and load the model there'
            )
        cuda = torch_cuda()
        return 0 if cuda is None else int(cuda.current_stream(self.device.index).cuda_stream)

    def memory_plan(self, limits: Limits | None = None) -> MemoryPlan:
        """The plan for `limits`; None: the present one, before the first call one sentence's."""
        with self._own_turn():
            if limits is None:
                one = Limits(batch=1, beams=1, source=SENTENCE, target=SENTENCE)
                limits = self._bound or self._bucket(one)
            return self._plan(limits)

    def _plan(self, limits: Limits) -> MemoryPlan:
        buffers, size = self._engine.plan(engine_limits(limits))
        return MemoryPlan(limits, tuple(buffers), size)

    def _reserve(self, needed: Limits) -> None:
        """Makes sure that the engine is bound to memory for `needed`.

        The bound plan stays as long as it serves: a GPU's captured steps are lost with it.
        """
        if needed == self._reserved:
            return
        if self.limits is not None:
            self._check(needed, self.limits)
            wanted = self.limits
        elif self._bound is not None and self._bound.cover(needed):
            wanted = self._bound
        else:
            wanted = self._grown(needed)
        if wanted != self._bound:
            self._bind(wanted)
        self._reserved = needed

    def _grown(self, needed: Limits) -> Limits:
        """A plan for `needed`, and for what is bound now where both together are not too much."""
        alone = self._bucket(needed)
        if self._bound is not None:
            both = self._bound.joined(alone)
            spares = self._plan(both).bytes <= SPARE * self._plan(alone).bytes
            if self._all_say(self._fits(both) and spares):
                return both
        return alone if self._all_say(self._fits(alone)) else needed

    def _all_say(self, flag: bool) -> bool:
        """Whether a flag is set on all ranks of a model that is split."""
        return flag

    def _fits(self, limits: Limits) -> bool:
        available = available_memory(self.device)
        size = self._plan(limits).bytes
        return available is None or size <= max(available, len(self._pool))

    def _check(self, needed: Limits, limits: Limits) -> None:
        for name in [name for name in LEAST if name != "batch"]:
            asked, most = getattr(needed, name), getattr(limits, name)
            if asked > most:
                size = self._plan(replace(limits, **{name: asked})).bytes
                raise ValueError(
                    f"this call needs {name}={asked}, the model was loaded with limits of "
                    f"{name}={most}: ask for less, or load it with Limits({name}={asked}, ...), "
                    f"which takes {size} bytes ({readable(size)})"
                )

    def _bind(self, limits: Limits) -> None:
        plan = self._plan(limits)
        if plan.bytes > len(self._pool):
            self._pool = self._allocate(limits, plan)
        self._bound = self._reserved = None  # until the engine has taken the new plan
        self._engine.bind(engine_limits(limits), self._pool)
        self._bound = limits

    def _allocate(self, limits: Limits, plan: MemoryPlan) -> Stored:
        available = available_memory(self.device)
        if available is None or plan.bytes <= available:
            try:
                return empty(plan.bytes, self.device)
            except MemoryError:
                pass  # there is none either: the same message
        raise OutOfMemoryError(
            f"the plan needs {plan.bytes} bytes ({readable(plan.bytes)}) on {self.device} for "
            f"{plan.sizes}; {available_text(available)}; lower {self._costliest(limits)}, here or "
            "as limits= of load()"
        )

    def _costliest(self, limits: Limits) -> str:
        """The limit that frees most when it is halved."""

        def halved(name: str) -> int:
            size = getattr(limits, name)
            return self._plan(replace(limits, **{name: max(min(size, 1), size // 2)})).bytes

        return min(("batch", "beams", "source", "prompt", "target", "labels"), key=halved)
