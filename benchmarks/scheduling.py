"""What serving costs beside the model: the time that a scheduler takes between two steps, and that
of the threads that call submit() and result()."""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import decoding
from benchmarks.report.rows import show_and_write
from decoding._kernels import scheduling_times
from decoding.compare.environment import Environment, environment
from decoding.compare.report.table import number
from decoding.compare.timing import percentile

Times = Iterator[tuple[str, list[float]]]  # what takes them, and seconds
DELIVERY = ("at the end", "token by token")
JOINS = ("all go on", "one joins, one leaves a step")
KINDS: dict[str, Callable[[list[int]], Any]] = {
    "a tensor": torch.tensor,
    "a list": list,
    "an array": np.array,
}


@dataclass(frozen=True)
class Conditions:
    """what: was timed. times: how often, in each of the repeats."""

    what: str
    times: int
    repeats: int


@dataclass(frozen=True)
class SchedulingRow(Environment, Conditions):
    """p50, p99: microseconds, medians over the repeats."""

    p50: float
    p99: float
    unit: str = "us"

    def __str__(self) -> str:
        p50, p99 = number(self.p50), number(self.p99)
        return f"{self.what:70} p50 {p50:>6} p99 {p99:>6} {self.unit}"


def step_times(rows: Sequence[int], steps: int) -> Times:
    """From the end of a step to the next one, of an engine whose steps take no time."""
    for count, joins, when in itertools.product(rows, JOINS, DELIVERY):
        taken = scheduling_times(count, steps, churn=joins == JOINS[1], stream=when == DELIVERY[1])
        yield f"a step of {count} rows, {joins}, delivered {when}", taken


def call_times(model: decoding.Model, calls: int) -> Times:
    """Of the caller's thread, without what it waits, for sentences of 16 tokens."""
    options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 2}
    draw = random.Random(0)
    rows = [[draw.randrange(4, 1000) for _ in range(16)] for _ in range(calls)]
    with decoding.Engine(model) as engine:
        for kind, make in KINDS.items():
            requests: list[decoding.Request[Any]] = []
            submits = [partial(engine.submit, make(row), **options) for row in rows]
            yield f"submit() of {kind}", [timed(submit, requests) for submit in submits]
        while not all(request.done for request in requests):
            time.sleep(0.01)
        yield "result()", [timed(request.result, []) for request in requests]
        submits = [
            partial(engine.submit, row, length_penalty=1 + i / calls, **options)
            for i, row in enumerate(rows)
        ]
        yield "submit() with new options", [timed(submit, requests) for submit in submits]


def timed(call: Callable[[], Any], results: list[Any]) -> float:
    begin = time.thread_time()
    result = call()
    seconds = time.thread_time() - begin
    results.append(result)
    return seconds


def measured(rows: Sequence[int], steps: int, calls: int, repeats: int) -> Iterator[SchedulingRow]:
    model = decoding.load("demo", device="cpu")
    for times in (partial(step_times, rows, steps), partial(call_times, model, calls)):
        for several in zip(*(times() for _ in range(repeats)), strict=True):
            what, taken = several[0]
            yield SchedulingRow(
                what=what,
                times=len(taken),
                repeats=repeats,
                p50=1e6 * median(percentile(seconds, 50) for _, seconds in several),
                p99=1e6 * median(percentile(seconds, 99) for _, seconds in several),
                **asdict(environment()),
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[64, 512])
    add("--steps", type=int, default=3000)
    add("--calls", type=int, default=1000)
    add("--repeats", type=int, default=5)
    add("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    rows = measured(options.rows, options.steps, options.calls, options.repeats)
    show_and_write(rows, options.output)


if __name__ == "__main__":
    main()
