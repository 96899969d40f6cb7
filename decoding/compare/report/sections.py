"""The sections of a page about whole calls, and the page of one comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from decoding.compare.report.answers import answer_table, pairs
from decoding.compare.report.conditions import conditions
from decoding.compare.report.facets import Facet, by_peers, facets, step_table
from decoding.compare.report.figures import (
    LATENCY,
    MEMORY,
    SHARE,
    THROUGHPUT,
    bounds,
    figure,
)
from decoding.compare.report.page import Chapter, Figure, Page, Section, Tile, legend
from decoding.compare.report.styles import OURS, called, ordered, style
from decoding.compare.report.table import Table, listed, number, percent, times
from decoding.compare.results import Check, Comparison, Run

EXPLANATIONS = {
    LATENCY: "Time of a whole call, encoder or prompt included, divided by its steps: the median, "
    "with a line from the 20th to the 80th percentile. The dash is the roofline "
    "bound: the least time for reading weights and kept keys and values once, for the arithmetic, "
    "or for the step's dependent launches on this machine.",
    THROUGHPUT: "New tokens of the returned rows in a second.",
    SHARE: "The roofline bound divided by the median. Weights that stay in a cache can pass 100 %.",
    MEMORY: "What the process, or the GPU, holds at most while generating, over what the engine's "
    "libraries took.",
}


def comparison_page(comparison: Comparison) -> Page:
    found = facets(comparison)
    engines = ordered(engine for facet in found for engine in facet.engines)
    return Page(
        title=f"{comparison.model}: {listed([style(engine).name for engine in engines])}",
        lead=f"The same weights in each engine, on {comparison.text}.",
        tiles=tiles(found, comparison.checks),
        chapters=[*answers(comparison.checks), *calls("Speed and memory", found)],
        conditions=conditions(comparison),
    )


def tiles(found: Sequence[Facet], checks: Sequence[Check] = (), where: str = "") -> list[Tile]:
    """Tiles with the speedup over each peer, the share of the roofline, and the share of equal
    answers."""
    result = []
    for peer in ordered(peer for facet in found for peer in facet.peers):
        ratios = [ratio for facet in found for ratio in facet.speedups(peer)]
        if ratios:
            spread = f"{times(min(ratios))} to {times(max(ratios))} in {len(ratios)} shapes"
            text = f"the speed of {style(peer).name}, median; {spread}"
            result.append(Tile(f"{times(median(ratios))}×", text, where))
    shares = [run.roofline_share for facet in found for run in facet.runs if run.engine == OURS]
    known = [share for share in shares if math.isfinite(share)]
    if known:
        text = f"of the roofline, median; {percent(min(known))} to {percent(max(known))}"
        result.append(Tile(percent(median(known)), text, where))
    exact = [check for check in checks if (check.engine, check.dtype) == (OURS, "float32")]
    lines = sum(check.sentences for check in exact)
    if lines:
        same = sum(check.identical for check in exact)
        text = f"of {lines} answers are those of {called(exact[0].reference)}"
        result.append(Tile(percent(same / lines), f"{text}, in float32", where))
    return result


def answers(checks: Sequence[Check]) -> list[Chapter]:
    if not checks:
        return []
    reference = called(checks[0].reference)
    intro = f"Checked before anything was timed: each engine's lines beside {reference}."
    sections = [Section("", [intro], tables=[("", answer_table(checks))])]
    if found := pairs(checks):
        text = "The first of them, the words that differ marked."
        sections.append(Section("Different answers", [text], pairs=found))
    return [Chapter("Answers", sections)]


def calls(title: str, found: Sequence[Facet]) -> list[Chapter]:
    """A chapter with figures of the facets of several shapes, if there are any, and all numbers."""
    if not found:
        return []
    shown = [facet for facet in found if len(facet.shapes) > 1] or found
    tables = [("Milliseconds a step, medians", step_table(group)) for group in by_peers(found)]
    tables.append(("All columns", run_table(found)))
    numbers = Section("All numbers", tables=tables, folded=True)
    return [Chapter(title, [*figure_sections(shown), numbers])]


def figure_sections(shown: Sequence[Facet]) -> list[Section]:
    """A section for each known measure, whose figures have the same axis; a single section for a
    single facet."""
    keys = legend(ordered(engine for facet in shown for engine in facet.engines))
    limit = legend([], limit=True)
    measures = [measure for measure in EXPLANATIONS if any(map(measure.known, shown))]
    figures = {
        measure: [
            Figure(facet.title, figure(facet, measure, *bounds(shown, measure)), measure.unit)
            for facet in shown
            if measure.known(facet)
        ]
        for measure in measures
    }
    if len(shown) == 1:
        return [
            Section(
                text=[f"{measure.name}. {EXPLANATIONS[measure]}" for measure in measures],
                legend=[*keys, *limit],
                figures=[
                    replace(found, title=f"{measure.name}, {found.title}")
                    for measure in measures
                    for found in figures[measure]
                ],
            )
        ]
    return [
        Section(
            title=measure.name,
            text=[EXPLANATIONS[measure]],
            legend=[*keys, *limit] if measure.limit else keys,
            figures=figures[measure],
        )
        for measure in measures
    ]


def run_table(found: Sequence[Facet]) -> Table:
    """All numbers of each run."""
    head = [
        "",
        "engine",
        "p20",
        "p50",
        "p80",
        "roofline",
        "bound by",
        "tokens/s",
        "first token, ms",
    ]
    head += ["MB", "MB loading", "MB moved a step", "MFLOP a step", "FLOP/byte", "kernels", "error"]
    rows = [
        [f"{facet.title} {facet.shape_name((run.beams, run.batch))}", style(run.engine).name]
        + run_cells(run)
        for facet in found
        for run in facet.runs
    ]
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return Table([head[i] for i in used], [[row[i] for i in used] for row in rows])


def run_cells(run: Run) -> list[str]:
    known = run.bytes > 0
    return [
        *map(number, (run.p20, run.p50, run.p80, run.roofline_bound)),
        run.bound_by,
        *map(number, (run.rate, run.first_token, run.memory, run.loading)),
        *map(number, (run.bytes / 1e6, run.flops / 1e6)),
        number(run.intensity) if known else "",
        str(run.nodes or ""),
        run.error,
    ]
