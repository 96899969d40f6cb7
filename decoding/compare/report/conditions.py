"""What was measured where, as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable

from decoding.compare.report.table import number
from decoding.compare.results import Comparison, Machine, Run


def conditions(comparison: Comparison) -> list[str]:
    tokenisation = "with" if comparison.tokenisation == "in" else "without"
    return [
        f"{comparison.model} on {comparison.text}; medians of {comparison.rounds} turns, "
        f"{tokenisation} tokenisation.",
        *(machine_line(machine) for machine in comparison.machines.values()),
        *versions(comparison.runs),
        *["Interrupted: this is what was there by then."] * (not comparison.finished),
    ]


def machine_line(machine: Machine) -> str:
    """ "AMD EPYC (avx2 fma), 2 threads; 41.1 GB/s, float32 490 GFLOP/s; commit 1a2b, DATE"."""
    known = {d: c for d, c in machine.ceilings.items() if math.isfinite(c.bandwidth)}
    first = list(known.values())[:1]
    limits = [f"{number(ceilings.bandwidth / 1e9)} GB/s" for ceilings in first]
    limits += [f"{dtype} {number(c.flops / 1e9)} GFLOP/s" for dtype, c in known.items()]
    limits += [f"{c.stage * 1e6:.2f} us a stage" for c in first if c.stage]
    threads = f", {machine.threads} threads" if machine.threads else ""
    parts = [f"{machine.name} ({machine.flags}){threads}", ", ".join(limits)]
    return "; ".join(filter(None, [*parts, f"commit {machine.commit}", machine.date])) + "."


def versions(runs: Iterable[Run]) -> list[str]:
    """One line, or none of runs that all failed."""
    names = dict.fromkeys(
        f"{run.version} ({run.isa})" if run.isa else run.version for run in runs if run.version
    )
    return [f"{'; '.join(names)}."] if names else []
