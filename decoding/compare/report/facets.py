"""Groups runs that belong side by side: one facet for each device, type and length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from decoding.compare.report.styles import OURS, ordered, style
from decoding.compare.report.table import Table, number, percent, times
from decoding.compare.results import Comparison, Run

Shape = tuple[int, int]  # beams, batch


@dataclass(frozen=True)
class Facet:
    """Runs of one model on one device in one type and length; one for each engine and shape.
    sampled: rows are sampled, and so have one beam; the title says so."""

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
        """Each engine's run on a shape."""
        return {run.engine: run for run in self.runs if (run.beams, run.batch) == shape}

    def shape_name(self, shape: Shape) -> str:
        beams, batch = shape
        return f"{batch}" if self.sampled else f"{batch}x{beams}"

    def speedups(self, peer: str) -> list[float]:
        """How many times faster ours is than the peer, for each shape that both have."""
        both = (self.at(shape) for shape in self.shapes)
        found = [speedup(runs, peer) for runs in both]
        return [ratio for ratio in found if math.isfinite(ratio)]


def speedup(runs: dict[str, Run], peer: str) -> float:
    """The peer's time over ours; NaN where one is missing. runs: of one shape, by engine."""
    if OURS not in runs or peer not in runs:
        return math.nan
    return runs[peer].p50 / runs[OURS].p50


def facets(comparison: Comparison) -> list[Facet]:
    """The facets of a comparison. Titles name the type, and the device and length where several
    occur."""
    kinds = dict.fromkeys((run.device, run.dtype, run.length) for run in comparison.runs)
    devices, lengths = ({kind[i] for kind in kinds} for i in (0, 2))
    return [
        Facet(
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


def step_table(found: Sequence[Facet]) -> Table:
    """Milliseconds a step of every engine, a line for each shape, and the speedups of ours. "by" is
    the longest part of the roofline bound."""
    engines = ordered(engine for facet in found for engine in facet.engines)
    peers = [engine for engine in engines if engine != OURS]
    with_ours = OURS in engines
    head = ["", "roofline", "by", *(style(engine).name for engine in engines)]
    head += [f"x {style(peer).name}" for peer in peers] * with_ours
    head += ["of roofline"] * with_ours
    rows = []
    for facet in found:
        for shape in facet.shapes:
            runs = facet.at(shape)
            bounds = [run for run in runs.values() if math.isfinite(run.roofline_bound)]
            line = [f"{facet.title} {facet.shape_name(shape)}"]
            line += [number(bounds[0].roofline_bound), bounds[0].bound_by] if bounds else ["", ""]
            line += [step(runs.get(engine)) for engine in engines]
            if with_ours:
                line += [times(speedup(runs, peer)) for peer in peers]
                line.append(percent(runs[OURS].roofline_share) if OURS in runs else "")
            rows.append(line)
    return Table(head, rows)


def step(run: Run | None) -> str:
    if run is None:
        return "-"
    return "**failed**" if run.error else number(run.p50)


def by_peers(found: Sequence[Facet]) -> list[list[Facet]]:
    """Groups facets that one table can show without empty columns: the peers of each are all among
    those of one of them."""
    most = {frozenset(facet.peers) for facet in found}
    groups: dict[frozenset[str], list[Facet]] = {}
    for facet in found:
        home = max((peers for peers in most if peers >= set(facet.peers)), key=len)
        groups.setdefault(home, []).append(facet)
    return list(groups.values())


def failures(found: Sequence[Facet]) -> list[str]:
    """A line for each run that has no times."""
    return [
        f"{style(run.engine).name} {facet.title} {facet.shape_name((run.beams, run.batch))}: "
        f"{run.error}"
        for facet in found
        for run in facet.runs
        if run.error
    ]


def summary(found: Sequence[Facet], peer: str) -> str:
    """ "5.7 times as fast as transformers (median; 3.2 to 6.3)", or "" where no shape has both."""
    ratios = [ratio for facet in found for ratio in facet.speedups(peer)]
    if not ratios:
        return ""
    spread = f" (median; {times(min(ratios))} to {times(max(ratios))})" * (len(ratios) > 1)
    return f"{times(median(ratios))} times as fast as {style(peer).name}{spread}"
