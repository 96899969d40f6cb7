"""Runs that belong side by side: one panel for each device, type and length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from decoding.compare.report.looks import OURS, look, ordered
from decoding.compare.report.table import Table, number, percent, times
from decoding.compare.results import Comparison, Run

Shape = tuple[int, int]  # beams, batch


@dataclass(frozen=True)
class Panel:
    """Runs of one model on one device in one type and length; one for each engine and shape.
    sampled: rows are drawn, and so have one beam; the title says so."""

    title: str
    runs: Sequence[Run]
    sampled: bool = False

    @property
    def engines(self) -> list[str]:
        return ordered(run.engine for run in self.runs)

    @property
    def peers(self) -> list[str]:
        return [engine for engine in self.engines if engine != OURS]

    @property
    def shapes(self) -> list[Shape]:
        return sorted({(run.beams, run.batch) for run in self.runs})

    def at(self, shape: Shape) -> dict[str, Run]:
        """Each engine's run."""
        return {run.engine: run for run in self.runs if (run.beams, run.batch) == shape}

    def shape_name(self, shape: Shape) -> str:
        beams, batch = shape
        return f"{batch}" if self.sampled else f"{batch}x{beams}"

    def speedups(self, peer: str) -> list[float]:
        """How many times faster than the peer ours is, for each shape that both have."""
        both = (self.at(shape) for shape in self.shapes)
        found = [speedup(runs, peer) for runs in both]
        return [ratio for ratio in found if math.isfinite(ratio)]


def speedup(runs: dict[str, Run], peer: str) -> float:
    """runs: of one shape, by engine. NaN where one of the two is missing."""
    if OURS not in runs or peer not in runs:
        return math.nan
    return runs[peer].p50 / runs[OURS].p50


def panels(comparison: Comparison) -> list[Panel]:
    """Titles say only what differs, and the type."""
    kinds = dict.fromkeys((run.device, run.dtype, run.length) for run in comparison.runs)
    devices, lengths = ({kind[i] for kind in kinds} for i in (0, 2))
    return [
        Panel(
            title=", ".join(
                [*[device.upper()] * (len(devices) > 1), dtype]
                + [f"{length} new tokens"] * (len(lengths) > 1)
            ),
            runs=[
                run
                for run in comparison.runs
                if (run.device, run.dtype, run.length) == (device, dtype, length)
            ],
        )
        for device, dtype, length in kinds
    ]


def step_table(found: Sequence[Panel]) -> Table:
    """Milliseconds a step of every engine, a line for each shape, and how ours compares. by: what
    the limit is made of."""
    engines = ordered(engine for panel in found for engine in panel.engines)
    peers = [engine for engine in engines if engine != OURS]
    held = OURS in engines
    head = ["", "limit", "by", *(look(engine).name for engine in engines)]
    head += [f"x {look(peer).name}" for peer in peers] * held
    head += ["of limit"] * held
    rows = []
    for panel in found:
        for shape in panel.shapes:
            runs = panel.at(shape)
            limits = [run for run in runs.values() if math.isfinite(run.floor)]
            line = [f"{panel.title} {panel.shape_name(shape)}"]
            line += [number(limits[0].floor), limits[0].bound] if limits else ["", ""]
            line += [step(runs.get(engine)) for engine in engines]
            if held:
                line += [times(speedup(runs, peer)) for peer in peers]
                line.append(percent(runs[OURS].of_floor) if OURS in runs else "")
            rows.append(line)
    return Table(head, rows)


def step(run: Run | None) -> str:
    if run is None:
        return "-"
    return "**failed**" if run.error else number(run.p50)


def by_peers(found: Sequence[Panel]) -> list[list[Panel]]:
    """What one table can show without empty columns: panels whose peers are all among those of one
    of them."""
    most = {frozenset(panel.peers) for panel in found}
    groups: dict[frozenset[str], list[Panel]] = {}
    for panel in found:
        home = max((peers for peers in most if peers >= set(panel.peers)), key=len)
        groups.setdefault(home, []).append(panel)
    return list(groups.values())


def failures(found: Sequence[Panel]) -> list[str]:
    """A line for each run that has no times."""
    return [
        f"{look(run.engine).name} {panel.title} {panel.shape_name((run.beams, run.batch))}: "
        f"{run.error}"
        for panel in found
        for run in panel.runs
        if run.error
    ]


def summary(found: Sequence[Panel], peer: str) -> str:
    """ "5.7 times as fast as transformers (median; 3.2 to 6.3)", or "" where no shape has both."""
    ratios = [ratio for panel in found for ratio in panel.speedups(peer)]
    if not ratios:
        return ""
    spread = f" (median; {times(min(ratios))} to {times(max(ratios))})" * (len(ratios) > 1)
    return f"{times(median(ratios))} times as fast as {look(peer).name}{spread}"
