"""What we aim at (targets.csv), held against what is in results/.

A target's figure says its unit, and with that its sense: "ms" and "us" are at most the bound;
"x PEER" (how many times faster than it) and "of roofline" at least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases.workloads import Shape
from benchmarks.report.recorded import MODELS
from benchmarks.report.rows import KernelRow, Row, read_rows, speedups
from decoding.compare.report.styles import style
from decoding.compare.report.table import Table, listed, number, percent, times

PATH = Path(__file__).parent.parent / "targets.csv"


@dataclass(frozen=True)
class Target:
    """results: the file's name without its end. what: a model or a kernel."""

    results: str
    what: str
    shape: str
    dtype: str
    figure: str
    bound: float

    @property
    def at_most(self) -> bool:
        return self.figure in ("ms", "us")


@dataclass(frozen=True)
class Outcome:
    target: Target
    measured: float

    @property
    def met(self) -> bool:
        bound = self.target.bound
        return self.measured <= bound if self.target.at_most else self.measured >= bound


def outcomes(
    calls: Mapping[str, Sequence[Row]], kernels: Mapping[str, Sequence[KernelRow]]
) -> list[Outcome]:
    """Of the targets that something was measured for. calls, kernels: rows by their file's name."""
    found = []
    for target in read_rows(PATH, Target):
        measured = of_calls(target, calls.get(target.results, ()))
        if measured is None:
            measured = of_kernels(target, kernels.get(target.results, ()))
        if measured is not None:
            found.append(Outcome(target, measured))
    return found


def of_calls(target: Target, rows: Sequence[Row]) -> float | None:
    for row in rows:
        where = (row.provider, row.model, row.shape, row.dtype)
        if where == ("ours", target.what, target.shape, target.dtype):
            peer = target.figure.removeprefix("x ")
            measured = {"ms": row.p50, "of roofline": row.roofline_share} | speedups(row, rows)
            if peer in measured:
                return measured[peer]
    return None


def of_kernels(target: Target, rows: Sequence[KernelRow]) -> float | None:
    for row in rows:
        where = (row.provider, row.kernel, row.shape, row.dtype)
        if where == ("ours", target.what, target.shape, target.dtype):
            return {"us": row.p50, "of roofline": row.roofline_share}[target.figure]
    return None


def of_kind(found: Sequence[Outcome], kind: str) -> list[Outcome]:
    """kind: "generate" or "kernels", with which the files' names begin."""
    return [outcome for outcome in found if outcome.target.results.startswith(kind)]


def call_goals(found: Sequence[Outcome]) -> str:
    calls = of_kind(found, "generate")
    met = sum(outcome.met for outcome in calls)
    return (
        f"Of our {len(calls)} goals for calls (`benchmarks/targets.csv`) {met} are met. Measured / "
        "goal, misses bold:"
    )


def goal_table(found: Sequence[Outcome]) -> Table:
    """A line for each model, type and figure: what was measured beside the goal."""
    cells: dict[str, dict[str, str]] = {}
    for outcome in of_kind(found, "generate"):
        cells.setdefault(line_of(outcome.target), {})[shape_of(outcome.target)] = cell(outcome)
    shapes = list(dict.fromkeys(shape for line in cells.values() for shape in line))
    rows = [[name, *(line.get(shape, "") for shape in shapes)] for name, line in cells.items()]
    return Table(["", *shapes], rows)


def line_of(target: Target) -> str:
    kind, _, peer = target.figure.partition(" ")
    figure = f"{kind} {style(peer).name}" if peer else kind
    return f"{MODELS[target.what]} {target.dtype}, {figure}"


def shape_of(target: Target) -> str:
    shape = Shape.parse(target.shape)
    return f"sampling {shape.batch}" if shape.sample else str(shape)


def cell(outcome: Outcome) -> str:
    measured = (number if outcome.target.at_most else times)(outcome.measured)
    return f"{measured if outcome.met else f'**{measured}**'} / {outcome.target.bound:g}"


def kernel_goals(found: Sequence[Outcome]) -> str:
    """With each miss."""
    kernels = of_kind(found, "kernels")
    missed = [
        f"{outcome.target.what} {outcome.target.shape} ({beside(outcome)})"
        for outcome in kernels
        if not outcome.met
    ]
    said = f"Of our {len(kernels)} goals for kernels {len(kernels) - len(missed)} are met"
    return f"{said}; missed: {listed(missed)}." if missed else f"{said}."


def beside(outcome: Outcome) -> str:
    """ "82 % of the limit, goal 85 %" or "7.10 us, goal 6"."""
    target = outcome.target
    if target.at_most:
        return f"{number(outcome.measured)} {target.figure}, goal {target.bound:g}"
    return f"{percent(outcome.measured)} of the roofline, goal {percent(target.bound)}"
