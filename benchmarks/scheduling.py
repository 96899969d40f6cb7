"""How long a scheduler takes between two steps: of an engine without a model, whose steps take no
time."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.report.rows import show_and_write
from decoding._kernels import scheduling_times
from decoding.compare.environment import Environment, environment
from decoding.compare.report.table import number
from decoding.compare.timing import percentile

TOLD = ("at the end", "token by token")


@dataclass(frozen=True)
class Conditions:
    """rows: that step. joins: requests that join, and as many that leave, in each step. told: when
    callers hear of tokens."""

    rows: int
    joins: int
    told: str
    steps: int
    repeats: int


@dataclass(frozen=True)
class SchedulingRow(Environment, Conditions):
    """p50, p99: microseconds from the end of a step to the next one, medians over the repeats."""

    p50: float
    p99: float
    unit: str = "us"

    def __str__(self) -> str:
        joins = "one joins, one leaves a step" if self.joins else "all go on"
        return (
            f"{self.rows:5} rows, {joins:28}, told {self.told:14} "
            f"p50 {number(self.p50):>6} p99 {number(self.p99):>6} {self.unit}"
        )


def measured(rows: Sequence[int], steps: int, repeats: int) -> Iterator[SchedulingRow]:
    for count, joins, told in itertools.product(rows, (0, 1), TOLD):
        taken = [
            [
                1e6 * seconds
                for seconds in scheduling_times(
                    count, steps, churn=bool(joins), stream=told == TOLD[1]
                )
            ]
            for _ in range(repeats)
        ]
        yield SchedulingRow(
            rows=count,
            joins=joins,
            told=told,
            steps=steps,
            repeats=repeats,
            p50=median(percentile(times, 50) for times in taken),
            p99=median(percentile(times, 99) for times in taken),
            **asdict(environment()),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[64, 512])
    add("--steps", type=int, default=3000)
    add("--repeats", type=int, default=5)
    add("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    show_and_write(measured(options.rows, options.steps, options.repeats), options.output)


if __name__ == "__main__":
    main()
