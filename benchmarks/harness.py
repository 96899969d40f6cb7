"""Timing and memory of engines side by side, each in a process of its own."""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.baselines import Engine, Ids, Settings
from benchmarks.workloads import Shape, Workload


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


class Worker:
    """One engine with a model in a process of its own, so that no library's threads, allocator or
    memory count as another's. Use as a context; the process ends with it.

    Raises RuntimeError with the worker's traceback when the engine fails.
    """

    def __init__(
        self, engine: type[Engine], directory: Path, workload: Workload, settings: Settings
    ) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would inherit pages and threads
        self.name, self.dtype, self.engine = engine.name, settings.dtype, engine
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=serve, args=(theirs, engine, directory, workload, settings), daemon=True
        )
        self._process.start()
        theirs.close()

    def load(self) -> None:
        """Waits for the libraries' imports, then loads the model."""
        self._receive()
        self.loaded: Loaded = self._ask("load")

    def run_once(self, ids: Ids, shape: Shape) -> list[list[int]]:
        """Takes a new input and runs it once, untimed: the warm-up. Returns the new tokens."""
        tokens: list[list[int]] = self._ask("run_once", ids, shape)
        return tokens

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
        self._connection.send((request, arguments))
        return self._receive()

    def _receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f"{self.name} {self.dtype} died with exit code {self._process.exitcode}"
            ) from None
        if isinstance(answer, Failure):
            raise RuntimeError(f"{self.name} {self.dtype} failed:\n{answer.text}")
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()  # ends serve()'s loop
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


@dataclass(frozen=True)
class Failure:
    text: str


def serve(
    connection: Connection,
    engine: type[Engine],
    directory: Path,
    workload: Workload,
    settings: Settings,
) -> None:
    """The worker's process: imports, then answers requests until the connection closes."""
    try:
        if settings.device == "cpu":
            pin_to_cores(settings.threads)
        for library in engine.libraries:
            importlib.import_module(library)
        meter = ResidentMemory() if settings.device == "cpu" else GpuMemory()
        connection.send(None)
        while True:
            request, arguments = connection.recv()
            if request == "load":
                with meter:
                    loaded = engine(directory, workload, settings)
                loading = meter.growth
                connection.send(Loaded(loaded.version, loaded.isa))
            elif request == "run_once":
                with meter:
                    loaded.prepare(*arguments)
                    tokens = loaded.generate()
                connection.send(tokens)
            elif request == "time":
                connection.send([seconds(loaded.generate) for _ in range(*arguments)])
            elif request == "nodes":
                connection.send(loaded.nodes)
            else:
                connection.send(Memory(loading, meter.growth))
    except EOFError:
        pass
    except Exception:
        connection.send(Failure(traceback.format_exc()))


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class ResidentMemory:
    """Measures what it is wrapped around. growth: the peak so far over what was resident at first,
    each time afresh."""

    def __init__(self) -> None:
        self.before = resident("VmRSS")

    def __enter__(self) -> None:
        forget_peak()

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def growth(self) -> int:
        return resident("VmHWM") - self.before


class GpuMemory:
    """Measures what it is wrapped around, while other processes use the GPU's memory too but do not
    change what they hold. growth: of all so far together."""

    def __init__(self) -> None:
        import torch

        self.growth = 0
        torch.zeros(1, device="cuda")  # the context, which every engine has

    def __enter__(self) -> None:
        self.before = free_memory()

    def __exit__(self, *_: object) -> None:
        self.growth += self.before - free_memory()


def free_memory() -> int:
    """Of the GPU, in bytes."""
    import torch

    return torch.cuda.mem_get_info()[0]


def interleaved(
    workers: Sequence[Worker], repeats: int, calls: Mapping[Worker, int], pause: float
) -> dict[Worker, list[float]]:
    """Seconds of calls of each worker, in turns: drift of the machine hits all alike.

    calls: of each worker in a turn. pause: seconds between two workers.
    """
    found: dict[Worker, list[float]] = {worker: [] for worker in workers}
    for turn in range(repeats):
        first = turn % len(workers)  # nobody always follows the same neighbour
        for worker in [*workers[first:], *workers[:first]]:
            time.sleep(pause)
            found[worker] += worker.time(calls[worker])
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation between the two nearest values."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def pin_to_cores(threads: int) -> None:
    """Keeps this process on `threads` cores, one logical CPU of each where there are enough."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    first_of_core = {siblings(cpu): cpu for cpu in reversed(cpus)}
    chosen = sorted(first_of_core.values())
    os.sched_setaffinity(0, (chosen if len(chosen) >= threads else cpus)[:threads])


def siblings(cpu: int) -> str:
    """The logical CPUs of the core that `cpu` belongs to."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text().strip() if path.exists() else str(cpu)


def resident(field: str, process: int | str = "self") -> int:
    """Bytes of a process in memory: "VmRSS" now, "VmHWM" at most so far; 0 of one that has ended.
    Linux only."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> None:
    """Starts VmHWM afresh from what is resident now (see proc_pid_clear_refs(5))."""
    Path("/proc/self/clear_refs").write_text("5")
