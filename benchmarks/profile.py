"""Where the time of our step goes on a GPU: every kernel, as torch.profiler sees it."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.cases.workloads import STEPS, WORKLOADS, Shape, random_ids
from decoding.compare.engines import Ours, Settings
from decoding.compare.task import Task

CALLS = 5
IDLE = "(nothing runs)"


def print_profile(task: Task, model: str, settings: Settings, shapes: Sequence[Shape]) -> None:
    """A table for each shape: kernels, then what the host asks of CUDA."""
    engine = Ours(task, settings)
    for shape in shapes:
        engine.prepare(random_ids(WORKLOADS[model], shape.batch), shape.point.search)
        step = 1e6 * timed(engine) / STEPS
        kernels, host = profiled(engine)
        total = sum(sum(durations) for durations in kernels.values())
        print(f"{model} {shape} {settings.dtype}: {step:.1f} us a step, {engine.nodes} nodes")
        print("   share  us/step  us each  in a call  kernel")
        for name, durations in sorted(kernels.items(), key=lambda item: -sum(item[1])):
            print(f"  {sum(durations) / total:6.1%} {line(durations)}  {name}")
        for name, durations in sorted(host.items(), key=lambda item: -sum(item[1]))[:5]:
            print(f"    host {line(durations)}  {name}")
        print(flush=True)


def line(durations: Sequence[float]) -> str:
    step, each = sum(durations) / CALLS / STEPS, sum(durations) / len(durations)
    return f"{step:8.2f} {each:8.2f} {len(durations) / CALLS:10.1f}"


def timed(engine: Ours) -> float:
    """Seconds of a call, the median of several; without the profiler."""
    found = []
    for _ in range(2 * CALLS + 1):
        begin = time.perf_counter()
        engine.generate()
        found.append(time.perf_counter() - begin)
    return sorted(found[1:])[CALLS]


def profiled(engine: Ours) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Of CALLS calls, by name: microseconds that every kernel and copy adds, and that the host
    spends in CUDA.

    Kernels overlap where one starts early and waits for the one before it: what a kernel adds is
    the time from that one's end to its own.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(CALLS):
            engine.generate()
        torch.cuda.synchronize()
    host: dict[str, list[float]] = defaultdict(list)
    added: dict[str, list[float]] = defaultdict(list)
    before = None
    events: Any = trace.events()
    for event in sorted(events, key=lambda event: event.time_range.end):
        begin, end = event.time_range.start, event.time_range.end
        if "CUDA" not in str(event.device_type):
            host[event.name].append(end - begin)
            continue
        if before is not None and begin > before:
            added[IDLE].append(begin - before)
        added[shortened(event.name)].append(end - max(begin, before or begin))
        before = end
    return dict(added), dict(host)


def shortened(name: str) -> str:
    """A demangled kernel's own name and template arguments."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|decoding::|cuda::|<unnamed>::", "", name)
    depth = 0
    for at in range(len(name) - 1, 0, -1):  # without the parameters, the last brackets
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return name[: at if name.endswith(")") else None][:110]
    return name[:110]
