"""Runs an engine in a process of its own, with limits on memory and time.

So no library's threads, allocator or memory count as another's, and an engine that dies, hangs or
exceeds its limits ends alone.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding.common.starting import start_without_interrupts
from decoding.compare.engines import Answer, EngineConfig
from decoding.compare.memory import resident
from decoding.compare.service import Failure, Loaded, Memory, serve
from decoding.compare.task import Ids, Search, Task

START = "spawn"  # of processes: a fork would inherit pages and threads
POLL = 0.05  # seconds between two checks of a process that works

Given = Ids | Sequence[str]  # the input of a call: ids, or texts where tokenisation is timed


@dataclass(frozen=True)
class ResourceLimits:
    """Limits on an engine. memory: bytes of its process's resident set, and on a GPU also of the
    memory that it takes there. seconds: for each request (converting, loading, one or more calls),
    but not for importing its libraries. None: no limit."""

    memory: float | None = None
    seconds: float | None = None


class EngineFailed(RuntimeError):
    """An engine raised an exception, died, or exceeded its limits. reason: one line."""

    def __init__(self, who: str, reason: str, trace: str = "") -> None:
        super().__init__(f"{who}: {reason}\n{trace}".rstrip())
        self.reason = reason


class Worker:
    """An engine in a process of its own, which ends with close().

    Every request may raise EngineFailed, after which the worker is of no more use.
    """

    def __init__(
        self,
        config: EngineConfig,
        task: Task,
        limits: ResourceLimits,
        *,
        text: bool = False,
        converted: Path | None = None,
    ) -> None:
        """text: its inputs are texts, not ids. converted: see Settings."""
        spawn: Any = multiprocessing.get_context(START)
        self.config, self._limits = config, limits
        self._connection, theirs = spawn.Pipe()
        settings = replace(config.settings, converted=converted)
        self._process = spawn.Process(
            target=serve, args=(theirs, config.engine, task, settings, text), daemon=True
        )
        start_without_interrupts(self._process)
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
        """Writes the library's own form of the model, instead of loading it."""
        self._ask("convert", directory)
        return directory

    def run_once(self, given: Given, search: Search) -> Answer:
        """Takes a new input and runs it once, untimed: the warm-up."""
        answer: Answer = self._ask("run_once", given, search)
        if self.config.settings.device != "cpu" and self._exceeds(self.memory().running):
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
        return self._receive(self._limits.seconds)

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
        return self._limits.memory is not None and size > self._limits.memory

    @property
    def _out_of_memory(self) -> str:
        return f"out of memory limit {(self._limits.memory or 0) / 1e9:g} GB"

    def _stopped(self, reason: str, trace: str = "") -> EngineFailed:
        self.close(kill=True)
        return EngineFailed(str(self.config), reason, trace)

    def close(self, kill: bool = False) -> None:
        """Ends the process. kill: at once, even in the middle of a call."""
        if kill:
            self._process.kill()
        self._connection.close()  # ends serve()'s loop
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def died(code: int) -> str:
    """Describes the exit code of a process that ended by itself."""
    if code >= 0:
        return f"died with exit code {code}"
    killed = " (was there too little memory?)" if code == -signal.SIGKILL else ""
    return f"died of {signal.Signals(-code).name}{killed}"
