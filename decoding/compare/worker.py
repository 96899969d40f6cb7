"""An engine in a process of its own, with an allowance of memory and time.

No library's threads, allocator or memory count as another's, and an engine that dies, hangs or
takes too much ends alone.
"""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from decoding.compare.engines import Answer, Contender, Engine, Settings
from decoding.compare.memory import GpuMemory, ResidentMemory, resident
from decoding.compare.task import Ids, Search, Task
from decoding.compare.timing import pin_to_cores

START = "spawn"  # of processes: a fork would inherit pages and threads
POLL = 0.05  # seconds between two looks at a process that works

Given = Ids | Sequence[str]  # what a call is given: ids, or texts where tokenisation is timed


@dataclass(frozen=True)
class Allowance:
    """What an engine may take: bytes of its process's resident memory, on a GPU also of that one's,
    and seconds for whatever it is asked once: converting, loading, one or more calls; importing
    its libraries does not count. None: no limit."""

    memory: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Memory:
    """Growth over what an engine's imports took, in bytes, while the model is loaded and while it
    generates. On the CPU: the peak of the process's resident set. On a GPU: what it has taken there
    for good, the buffers of its libraries too.
    """

    loading: int
    running: int


@dataclass(frozen=True)
class Loaded:
    """What an engine says of itself."""

    version: str
    isa: str


@dataclass(frozen=True)
class Failure:
    """An exception in the worker's process: its last line, and all of it."""

    reason: str
    trace: str


class EngineFailed(RuntimeError):
    """An engine raised an exception, died, or took more than its allowance. reason: one line."""

    def __init__(self, who: str, reason: str, trace: str = "") -> None:
        super().__init__(f"{who}: {reason}\n{trace}".rstrip())
        self.reason = reason


class Worker:
    """A contender in a process of its own, which ends with close().

    Every request raises EngineFailed, after which the worker is of no more use.
    """

    def __init__(
        self,
        contender: Contender,
        task: Task,
        allowance: Allowance,
        *,
        text: bool = False,
        converted: Path | None = None,
    ) -> None:
        """text: it will be given texts, not ids. converted: see Settings."""
        spawn: Any = multiprocessing.get_context(START)
        self.contender, self._allowance = contender, allowance
        self._connection, theirs = spawn.Pipe()
        settings = replace(contender.settings, converted=converted)
        self._process = spawn.Process(
            target=serve, args=(theirs, contender.engine, task, settings, text), daemon=True
        )
        self._process.start()
        theirs.close()
        self._ready = False

    def ready(self) -> bool:
        """Waits for the libraries' imports."""
        if not self._ready:
            self._receive(seconds=None)
            self._ready = True
        return True

    def load(self) -> Loaded:
        """Loads the model."""
        loaded: Loaded = self._ask("load")
        self.loaded = loaded
        return loaded

    def convert(self, directory: Path) -> Path:
        """Writes the library's own form of the model, in the place of load()."""
        self._ask("convert", directory)
        return directory

    def run_once(self, given: Given, search: Search) -> Answer:
        """Takes a new input and runs it once, untimed: the warm-up."""
        answer: Answer = self._ask("run_once", given, search)
        if self.contender.settings.device != "cpu" and self._exceeds(self.memory().running):
            raise self._stopped(self._out_of_memory)
        return answer

    def time(self, calls: int) -> list[float]:
        """Seconds of each of so many more calls on the same input."""
        seconds: list[float] = self._ask("time", calls)
        return seconds

    def memory(self) -> Memory:
        memory: Memory = self._ask("memory")
        return memory

    def nodes(self) -> int:
        nodes: int = self._ask("nodes")
        return nodes

    def _ask(self, request: str, *arguments: object) -> Any:
        self.ready()
        try:
            self._connection.send((request, arguments))
        except OSError:
            raise self._stopped("it had ended") from None
        return self._receive(self._allowance.seconds)

    def _receive(self, seconds: float | None) -> Any:
        begin = time.monotonic()
        while not self._connection.poll(POLL):
            if self._exceeds(resident("VmRSS", self._process.pid or 0)):
                raise self._stopped(self._out_of_memory)
            if seconds is not None and time.monotonic() - begin > seconds:
                raise self._stopped(f"out of time after {seconds:g} s")
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise self._stopped(died(self._process.exitcode or 0)) from None
        if isinstance(answer, Failure):
            raise self._stopped(answer.reason, answer.trace)
        return answer

    def _exceeds(self, size: int) -> bool:
        return self._allowance.memory is not None and size > self._allowance.memory

    @property
    def _out_of_memory(self) -> str:
        return f"out of memory limit {(self._allowance.memory or 0) / 1e9:g} GB"

    def _stopped(self, reason: str, trace: str = "") -> EngineFailed:
        self.close(kill=True)
        return EngineFailed(str(self.contender), reason, trace)

    def close(self, kill: bool = False) -> None:
        """kill: it may be in the middle of a call, which nobody waits for."""
        self._connection.close()  # ends serve()'s loop
        if kill:
            self._process.kill()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def died(code: int) -> str:
    """What an exit code says."""
    if code >= 0:
        return f"died with exit code {code}"
    killed = " (was there too little memory?)" if code == -signal.SIGKILL else ""
    return f"died of {signal.Signals(-code).name}{killed}"


class Service:
    """The worker's side: the libraries are imported, requests are its methods' names."""

    def __init__(self, engine: type[Engine], task: Task, settings: Settings, text: bool) -> None:
        if settings.device == "cpu":
            pin_to_cores(settings.threads)
        for library in (*engine.libraries, *(engine.text_libraries if text else ())):
            importlib.import_module(library)
        self.engine, self.task, self.settings = engine, task, settings
        self.meter = ResidentMemory() if settings.device == "cpu" else GpuMemory()

    def convert(self, directory: Path) -> None:
        self.engine.convert(self.task, self.settings.dtype, directory)

    def load(self) -> Loaded:
        with self.meter:
            self.model = self.engine(self.task, self.settings)
        self.loading = self.meter.growth
        return Loaded(self.model.version, self.model.isa)

    def run_once(self, given: Given, search: Search) -> Answer:
        model = self.model

        def from_text() -> Answer:
            model.prepare(model.encode(texts), search)
            answer = model.generate()
            model.decode(answer.tokens)
            return answer

        texts = [each for each in given if isinstance(each, str)]
        self.call: Callable[[], Answer] = from_text if texts else model.generate
        with self.meter:
            if not texts:
                model.prepare([each for each in given if not isinstance(each, str)], search)
            return self.call()

    def time(self, calls: int) -> list[float]:
        return [seconds(self.call) for _ in range(calls)]

    def memory(self) -> Memory:
        return Memory(self.loading, self.meter.growth)

    def nodes(self) -> int:
        return self.model.nodes


def serve(
    connection: Connection, engine: type[Engine], task: Task, settings: Settings, text: bool
) -> None:
    """The worker's process: answers requests until the connection closes, or one fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asks
    warnings.simplefilter("ignore")  # what libraries advise would drown the rows
    try:
        service = Service(engine, task, settings, text)
        connection.send(None)
        while True:
            request, arguments = connection.recv()
            connection.send(getattr(service, request)(*arguments))
    except EOFError:
        pass
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        connection.send(Failure(reason, traceback.format_exc()))


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
