"""The page of all that is in results/."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.kernels import case_table, kernel_figure, kernel_table, keys
from benchmarks.report.recorded import Results, machine, read_facets, read_machines, same_tokens
from benchmarks.report.rows import KernelRow, Row
from benchmarks.report.targets import call_goals, goal_table, kernel_goals, outcomes
from benchmarks.report.views import VIEWS, View, read_view
from decoding.compare.report.conditions import machine_lines, place, versions
from decoding.compare.report.facets import Facet, by_peers
from decoding.compare.report.page import Chapter, Figure, Page, Section, Tile
from decoding.compare.report.sections import calls, tiles


def page(results: Results) -> Page:
    chapters = [
        *(chapter for rows in results.calls.values() for chapter in call_chapters(rows)),
        *goal_chapters(results),
        *(kernel_chapter(rows) for rows in results.kernels.values()),
        *(chapter for view in VIEWS for chapter in view_chapters(view, results)),
    ]
    return Page(
        title="decoding: what was measured",
        lead="Whole calls beside transformers and CTranslate2 on the same weights, kernels beside "
        "torch, and how near each comes to what the machine allows.",
        tiles=[tile for rows in results.calls.values() for tile in device_tiles(rows)],
        chapters=chapters,
        conditions=[text for rows in results.calls.values() for text in conditions(rows)],
    )


def device_tiles(rows: Sequence[Row]) -> list[Tile]:
    return tiles(main_facets(rows), where=rows[0].device)


def main_facets(rows: Sequence[Row]) -> list[Facet]:
    """Those that most peers are in."""
    return max(by_peers(read_facets(rows)), key=len)


def call_chapters(rows: Sequence[Row]) -> list[Chapter]:
    return calls(f"Calls on {rows[0].device}", read_facets(rows))


def goal_chapters(results: Results) -> list[Chapter]:
    found = outcomes(results.calls, results.kernels)
    if not found:
        return []
    said = [call_goals(found).replace("`", ""), kernel_goals(found)]
    return [Chapter("Goals", [Section(text=said, tables=[("", goal_table(found))])])]


KERNELS = (
    "Each point is a kernel of ours on one shape: its share of the roofline, the longest of moving "
    "its bytes, its arithmetic and a dependent launch. Grey: torch's fastest on the same shape."
)


def kernel_chapter(rows: Sequence[KernelRow]) -> Chapter:
    where = machine(rows[0])
    drawn = kernel_figure(rows)
    figure = Figure("Operations for each byte moved", drawn, "of the limit", wide=True)
    sections = [
        Section(
            text=[KERNELS, f"{place(where)}."],
            legend=keys(rows),
            figures=[figure],
            tables=[("Medians and ranges over the shapes", kernel_table(rows))],
        ),
        Section("All shapes", tables=[("", case_table(rows))], folded=True),
    ]
    return Chapter(f"Kernels on {where.name}", sections)


def view_chapters(view: View, results: Results) -> list[Chapter]:
    found = read_view(view, results.folder)
    captions = [f"{each.text.replace('`', '')} {place(each.machine)}." for each in found]
    tables = [(caption, each.table) for caption, each in zip(captions, found, strict=True)]
    return [Chapter(view.title, [Section(tables=tables)])] if found else []


def conditions(rows: Sequence[Row]) -> list[str]:
    runs = [run for facet in read_facets(rows) for run in facet.runs]
    return [machine_lines(read_machines(rows)), *versions(runs), same_tokens(rows)]
