"""The process of a worker: imports an engine's libraries and answers requests."""

from __future__ import annotations

import importlib
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from decoding.compare.engines import Answer, Engine, Settings
from decoding.compare.memory import GpuMemory, ResidentMemory
from decoding.compare.task import Search, Task
from decoding.compare.timing import pin_to_cores


@dataclass(frozen=True)
class Memory:
    """Bytes beyond those of an engine's imports, while the model is loaded and while it generates:
    on the CPU the growth of the process's peak resident set, on a GPU the memory that the process
    keeps there, buffers of libraries included.
    """

    loading: int
    running: int


@dataclass(frozen=True)
class Loaded:
    """An engine's version and the instruction set that it uses."""

    version: str
    isa: str


@dataclass(frozen=True)
class Failure:
    """An exception in the worker's process. reason: its last line; trace: its traceback."""

    reason: str
    trace: str


class Service:
    """Answers requests, which are named as its methods."""

    def __init__(self, engine: type[Engine], task: Task, settings: Settings, text: bool) -> None:
        if settings.device == "cpu":
            pin_to_cores(settings.threads)
        for library in (*engine.libraries, *(engine.text_libraries if text else ())):
            importlib.import_module(library)
        self.engine, self.task, self.settings, self.text = engine, task, settings, text
        self.call: Callable[[], Answer]
        self.meter = ResidentMemory() if settings.device == "cpu" else GpuMemory()

    def convert(self, directory: Path) -> None:
        self.engine.convert(self.task, self.settings.dtype, directory)

    def load(self) -> Loaded:
        with self.meter:
            self.model = self.engine(self.task, self.settings)
        self.loading = self.meter.growth
        return Loaded(self.model.version, self.model.isa)

    def run_once(self, given: Any, search: Search) -> Answer:
        with self.meter:
            if self.text:
                self.call = partial(self.from_text, given, search)
            else:
                self.model.prepare(given, search)
                self.call = self.model.generate
            return self.call()

    def from_text(self, texts: Sequence[str], search: Search) -> Answer:
        self.model.prepare(self.model.encode(texts), search)
        answer = self.model.generate()
        self.model.decode(answer.tokens)
        return answer

    def time(self, calls: int) -> list[float]:
        return [seconds(self.call) for _ in range(calls)]

    def memory(self) -> Memory:
        return Memory(self.loading, self.meter.growth)

    def nodes(self) -> int:
        return self.model.nodes


def serve(
    connection: Connection, engine: type[Engine], task: Task, settings: Settings, text: bool
) -> None:
    """Answers requests until the connection closes or one fails."""
    warnings.simplefilter("ignore")  # libraries' advice would hide the rows
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
        with suppress(ConnectionError):  # who asked may have gone
            connection.send(Failure(reason, traceback.format_exc()))


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
