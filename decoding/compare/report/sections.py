"""The sections of a page about whole calls, and the page of one comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from decoding.compare.report.answers import answer_table, pairs
from decoding.compare.report.conditions import conditions
from decoding.compare.report.figures import (
    LATENCY,
    MEMORY,
    SHARE,
    THROUGHPUT,
    bounds,
    figure,
)
from decoding.compare.report.looks import OURS, called, look, ordered
from decoding.compare.report.page import Chapter, Figure, Page, Section, Tile, legend
from decoding.compare.report.panels import Panel, by_peers, panels, step_table
from decoding.compare.report.table import Table, listed, number, percent, times
from decoding.compare.results import Check, Comparison, Run

EXPLANATIONS = {
    LATENCY: "Time of a whole call, encoder or prompt included, divided by its steps: the median, "
    "with a line from the 20th to the 80th percentile. The dash is the limit: what reading weights "
    "and kept keys and values once, the arithmetic or the step's dependent stages take at least on "
    "this machine.",
    THROUGHPUT: "New tokens of the returned rows in a second.",
    SHARE: "The limit divided by the median. Weights that stay in a cache can pass 100 %.",
    MEMORY: "What the process, or the GPU, holds at most while generating, over what the engine's "
    "libraries took.",
}


def comparison_page(comparison: Comparison) -> Page:
    found = panels(comparison)
    engines = ordered(engine for panel in found for engine in panel.engines)
    return Page(
        title=f"{comparison.model}: {listed([look(engine).name for engine in engines])}",
        lead=f"The same weights in each engine, on {comparison.text}.",
        tiles=tiles(found, comparison.checks),
        chapters=[*answers(comparison.checks), *calls("Speed and memory", found)],
        conditions=conditions(comparison),
    )


def tiles(found: Sequence[Panel], checks: Sequence[Check] = (), where: str = "") -> list[Tile]:
    """How much faster ours is than each peer, how near to the limit, and whether it is right."""
    result = []
    for peer in ordered(peer for panel in found for peer in panel.peers):
        ratios = [ratio for panel in found for ratio in panel.speedups(peer)]
        if ratios:
            spread = f"{times(min(ratios))} to {times(max(ratios))} in {len(ratios)} shapes"
            text = f"the speed of {look(peer).name}, median; {spread}"
            result.append(Tile(f"{times(median(ratios))}×", text, where))
    shares = [run.of_floor for panel in found for run in panel.runs if run.engine == OURS]
    known = [share for share in shares if math.isfinite(share)]
    if known:
        text = f"of the machine's limit, median; {percent(min(known))} to {percent(max(known))}"
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


def calls(title: str, found: Sequence[Panel]) -> list[Chapter]:
    """Figures of the panels with more than one shape, if there are such; then all numbers."""
    if not found:
        return []
    shown = [panel for panel in found if len(panel.shapes) > 1] or found
    tables = [("Milliseconds a step, medians", step_table(group)) for group in by_peers(found)]
    tables.append(("All that is known", run_table(found)))
    numbers = Section("All numbers", tables=tables, folded=True)
    return [Chapter(title, [*figure_sections(shown), numbers])]


def figure_sections(shown: Sequence[Panel]) -> list[Section]:
    """One for each measure that is known, its figures with the same axis; all in one where there is
    but one panel."""
    keys = legend(ordered(engine for panel in shown for engine in panel.engines))
    limit = legend([], limit=True)
    measures = [measure for measure in EXPLANATIONS if any(map(measure.known, shown))]
    figures = {
        measure: [
            Figure(panel.title, figure(panel, measure, *bounds(shown, measure)), measure.unit)
            for panel in shown
            if measure.known(panel)
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


def run_table(found: Sequence[Panel]) -> Table:
    """All that is known of each run."""
    head = ["", "engine", "p20", "p50", "p80", "limit", "bound by", "tokens/s", "first token, ms"]
    head += ["MB", "MB loading", "MB moved a step", "MFLOP a step", "FLOP/byte", "kernels", "error"]
    rows = [
        [f"{panel.title} {panel.shape_name((run.beams, run.batch))}", look(run.engine).name]
        + run_cells(run)
        for panel in found
        for run in panel.runs
    ]
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return Table([head[i] for i in used], [[row[i] for i in used] for row in rows])


def run_cells(run: Run) -> list[str]:
    known = run.bytes > 0
    return [
        *map(number, (run.p20, run.p50, run.p80, run.floor)),
        run.bound,
        *map(number, (run.rate, run.first_token, run.memory, run.loading)),
        *map(number, (run.bytes / 1e6, run.flops / 1e6)),
        number(run.intensity) if known else "",
        str(run.nodes or ""),
        run.error,
    ]
