"""The sections of docs/performance.md on speed and quality, all numbers from rows in results/."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from textwrap import TextWrapper

from benchmarks.cases.workloads import SOURCE, STEPS, TOP_K, TOP_P
from benchmarks.report.kernels import kernel_table, spread
from benchmarks.report.recorded import Results, machine, read_facets, read_machines, same_tokens
from benchmarks.report.rows import KernelRow, Row
from benchmarks.report.targets import call_goals, goal_table, kernel_goals, outcomes
from benchmarks.report.views import QUALITY, SPEED, View, read_view
from decoding.compare.report.conditions import machine_lines, on_threads, place, versions
from decoding.compare.report.facets import Facet, by_peers, step_table, summary
from decoding.compare.report.styles import OURS, style
from decoding.compare.report.table import listed, times

BEGIN = "<!-- {}: python -m benchmarks.report --performance writes this from benchmarks/results -->"
END = "<!-- {}: end -->"
METHOD = (
    "The tables show milliseconds per step of whole `generate()` calls: medians, with all engines "
    f"on the same weights in one run, {SOURCE} source or prompt tokens and {STEPS} new ones. `8x4` "
    "is a batch of 8 sentences with 4 beams each; one beam is greedy search. `roofline` is the "
    "roofline bound, the least time that a step can take on that machine, and `by` names what sets "
    "it: reading every weight and every stored key and value once (memory), the arithmetic, or the "
    "chain of dependent launches. Where weights stay in a cache between steps, a step can take "
    "less than the bound: more than 100 % of the roofline. [Benchmarks](benchmarks.md) describes "
    "the method."
)
LINES = TextWrapper(100, break_long_words=False, break_on_hyphens=False)


def with_sections(text: str, results: Results) -> str:
    """The page with what stands between its markers written anew. Raises ValueError where a marker
    is missing."""
    for name, found in {"speed": speed(results), "quality": quality(results)}.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, opened, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not opened or not closed:
            raise ValueError(f"docs/performance.md must have the lines {begin!r} and {end!r}")
        text = f"{before}{begin}\n\n{found}\n\n{end}{after}"
    return text


def speed(results: Results) -> str:
    found = outcomes(results.calls, results.kernels)
    parts = [
        "## Whole calls",
        METHOD,
        *(text for name, rows in results.calls.items() for text in calls(name, rows)),
        "## Kernels",
        *(text for name, rows in results.kernels.items() for text in kernels(name, rows)),
        *(text for view in SPEED for text in chapter(view, results)),
        "## Goals",
        *([call_goals(found), goal_table(found).markdown()] if found else []),
        kernel_goals(found),
    ]
    return joined(parts)


def quality(results: Results) -> str:
    return joined(views(QUALITY, results))


def peers_of(facets: Sequence[Facet]) -> list[str]:
    return list(dict.fromkeys(peer for facet in facets for peer in facet.peers))


def joined(parts: Iterable[str]) -> str:
    """Headings, paragraphs and tables."""
    return "\n\n".join(part if part[0] in "#|" else LINES.fill(part) for part in parts)


def calls(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """Tables of a device, how much faster ours is, and what was measured where."""
    facets, machines = read_facets(rows), read_machines(rows)
    groups = by_peers(facets)
    said = [summary(groups[0], peer) for peer in peers_of(groups[0])]
    yield f"**{machines[0].name}{on_threads(machines[0])}**: decoding is {listed(said)}."
    for group in groups:
        yield step_table(group).markdown()
    sampling = f"Sampling draws with top_k {TOP_K} and top_p {TOP_P}."
    parts = [
        memory(facets),
        same_tokens(rows),
        *[sampling] * any(facet.sampled for facet in facets),
        *(f"Versions: {line}" for line in versions(run for facet in facets for run in facet.runs)),
        f"Ceilings: {machine_lines(machines)}",
        f"The rows are in `benchmarks/results/{name}.csv`.",
    ]
    yield " ".join(parts)


def memory(facets: Sequence[Facet]) -> str:
    """How much ours holds beside each peer."""
    ratios: dict[str, list[float]] = {}
    for facet in facets:
        for runs in map(facet.at, facet.shapes):
            for peer in facet.peers:
                ratio = runs[OURS].memory / runs[peer].memory if peer in runs else math.nan
                if math.isfinite(ratio):
                    ratios.setdefault(style(peer).name, []).append(ratio)
    said = [f"{spread(found, times)} times that of {peer}" for peer, found in ratios.items()]
    return f"The peak memory of decoding while it generates is {listed(said)}."


def kernels(name: str, rows: Sequence[KernelRow]) -> Iterator[str]:
    where = place(machine(rows[0]))
    yield (
        "The table shows our kernels alone, with medians and ranges over their shapes. This was "
        f"measured on {where} (`{name}.csv`)."
    )
    yield kernel_table(rows).markdown()


def chapter(view: View, results: Results) -> list[str]:
    """With its heading; empty where nothing was recorded."""
    found = [*views(view, results)]
    return [f"## {view.title}", *found] if found else []


def views(view: View, results: Results) -> Iterator[str]:
    for found in read_view(view, results.folder):
        yield f"{found.text} This was measured on {place(found.machine)} (`{found.name}`)."
        yield found.table.markdown()
