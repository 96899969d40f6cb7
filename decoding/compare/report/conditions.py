"""Describes the conditions of a measurement in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from decoding.compare.report.table import number
from decoding.compare.results import Comparison, Machine, Run


def conditions(comparison: Comparison) -> list[str]:
    tokenisation = "with" if comparison.tokenisation == "in" else "without"
    return [
        f"{comparison.model} on {comparison.text}; medians of {comparison.rounds} turns, "
        f"{tokenisation} tokenisation.",
        machine_lines(list(comparison.machines.values())),
        *versions(comparison.runs),
        *["Interrupted: later findings are missing."] * (not comparison.finished),
    ]


def on_threads(machine: Machine) -> str:
    """The number of threads of a CPU, written after its name."""
    if machine.threads == 0:
        return ""
    return f", {machine.threads} thread" + "s" * (machine.threads > 1)


def machine_lines(machines: Sequence[Machine]) -> str:
    """Each device once, with the ceilings of each run on it: "AMD EPYC (avx2 fma), 2 threads: 41.1
    GB/s, float32 490 GFLOP/s (commit 1a2b, DATE)."."""
    runs: dict[str, list[str]] = {}
    for machine in machines:
        device = f"{machine.name} ({machine.flags}){on_threads(machine)}"
        when = f"(commit {machine.commit}, {machine.date})"
        runs.setdefault(device, []).append(" ".join(filter(None, [ceilings(machine), when])))
    return " ".join(f"{device}: {'; '.join(found)}." for device, found in runs.items())


def ceilings(machine: Machine) -> str:
    """ "41.1 GB/s, float32 490 GFLOP/s"; "" where they were not measured."""
    known = {d: c for d, c in machine.ceilings.items() if math.isfinite(c.bandwidth)}
    parts = [f"{number(c.bandwidth / 1e9)} GB/s" for c in known.values()][:1]
    parts += [f"{dtype} {operations(c.flops)}" for dtype, c in known.items()]
    parts += [f"{c.launch * 1e6:.2f} us a dependent launch" for c in known.values() if c.launch][:1]
    return ", ".join(parts)


def operations(rate: float) -> str:
    return f"{number(rate / 1e12)} TFLOP/s" if rate >= 1e13 else f"{number(rate / 1e9)} GFLOP/s"


def place(machine: Machine) -> str:
    """The machine, commit and date in short."""
    return f"{machine.name}, commit {machine.commit}, {machine.date}"


def versions(runs: Iterable[Run]) -> list[str]:
    """One line, or none of runs that all failed."""
    names = dict.fromkeys(
        f"{run.version} ({run.isa})" if run.isa else run.version for run in runs if run.version
    )
    return [f"{'; '.join(names)}."] if names else []
