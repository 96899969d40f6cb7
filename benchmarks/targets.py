"""What we aim at (targets.csv), held against what is in results/.

A target's figure says its unit, and with that its sense: "ms" and "us" are at most the bound;
"x PEER" (how many times faster than it) and "of limit" at least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows import KernelRow, Row, read_rows, speedups

PATH = Path(__file__).with_name("targets.csv")


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
            measured = {"ms": row.p50, "of limit": row.of_floor} | speedups(row, rows)
            if peer in measured:
                return measured[peer]
    return None


def of_kernels(target: Target, rows: Sequence[KernelRow]) -> float | None:
    for row in rows:
        where = (row.provider, row.kernel, row.shape, row.dtype)
        if where == ("ours", target.what, target.shape, target.dtype):
            return {"us": row.p50, "of limit": row.of_floor}[target.figure]
    return None
