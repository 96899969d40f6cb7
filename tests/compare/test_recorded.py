"""What is in benchmarks/results: docs/performance.md and the page say what the rows say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases.workloads import WORKLOADS, Shape
from benchmarks.report import performance
from benchmarks.report.kernels import STYLES, cases, kernel_figure
from benchmarks.report.page import page
from benchmarks.report.recorded import MODELS, Results, read_facets, run
from benchmarks.report.rows import KernelRow, Row, read_rows, speedups, write_rows
from benchmarks.report.targets import PATH, Outcome, Target, outcomes
from benchmarks.report.views import VIEWS
from decoding.compare.runs import megabytes

ROOT = Path(__file__).parent.parent.parent
PERFORMANCE = ROOT / "docs/performance.md"


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read(ROOT / "benchmarks/results")


def test_performance_page_is_what_the_rows_say(results: Results) -> None:
    text = PERFORMANCE.read_text("utf-8")
    command = "python -m benchmarks.report --performance"
    assert performance.with_sections(text, results) == text, f"run {command}"


def test_performance_page_changes_with_the_rows(results: Results) -> None:
    name, rows = next(iter(results.calls.items()))
    faster = [replace(row, p50=row.p50 / 2) for row in rows]
    text = PERFORMANCE.read_text("utf-8")
    assert performance.with_sections(text, replace(results, calls={name: faster})) != text
    with pytest.raises(ValueError, match="must have the lines '<!-- speed"):
        performance.with_sections("# decoding", results)


def test_the_page_has_all_files(results: Results) -> None:
    html = page(results).html()
    for device in ("AMD EPYC, 2 CPUs", "NVIDIA H200"):
        assert f"Calls on {device}" in html
    recorded = [view.title for view in VIEWS if any(results.folder.glob(view.files))]
    assert len(recorded) >= 6
    for title in ("Goals", "Kernels on NVIDIA H200", *recorded):
        assert f"<h2>{title}</h2>" in html


def test_only_engines_of_one_run_are_compared(results: Results) -> None:
    rows = [row for found in results.calls.values() for row in found]
    for row in rows:
        for facet in read_facets(rows):
            if run(row) in facet.runs:
                same = {r.run for r in rows if run(r) in facet.runs}
                assert same == {row.run}
    slower = replace(rows[0], provider="ours", commit="another", p50=1.0)
    assert speedups(slower, rows) == {}


def test_memory_below_the_model_s_is_none(results: Results) -> None:
    row = results.calls["generate-cuda"][0]
    low = replace(row, memory=row.loading - 1)
    assert math.isnan(run(low).memory) and run(replace(low, threads=2)).memory == low.memory
    assert math.isnan(megabytes(1, least=2)) and megabytes(2_000_000, least=2_000_000) == 2


def test_rows_are_read_as_they_were_written(tmp_path: Path, results: Results) -> None:
    kernels = [replace(next(iter(results.kernels.values()))[0], error=math.nan)]
    calls = [replace(next(iter(results.calls.values()))[0], p50=1.23456789)]
    once, twice = tmp_path / "once.csv", tmp_path / "twice.csv"
    for rows, kind in ((kernels, KernelRow), (calls, Row)):
        write_rows(rows, once)
        write_rows(read_rows(once, kind), twice)
        assert once.read_text() == twice.read_text()
    assert read_rows(once, Row) == [replace(calls[0], p50=1.2346)]


def test_targets_name_what_is_measured(results: Results) -> None:
    kernels = {row.kernel for rows in results.kernels.values() for row in rows}
    targets = read_rows(PATH, Target)
    assert len({(t.results, t.what, t.shape, t.dtype, t.figure) for t in targets}) == len(targets)
    for target in targets:
        if target.results.startswith("generate"):
            assert target.what in WORKLOADS and target.what in MODELS and Shape.parse(target.shape)
            assert target.figure in ("ms", "x ctranslate2", "x huggingface")
        else:
            assert target.what in kernels and target.figure in ("us", "of roofline")
    assert len(outcomes(results.calls, results.kernels)) >= len(targets) - 1


@pytest.mark.parametrize(
    ("figure", "measured", "met"),
    [
        ("ms", 0.9, True),
        ("ms", 1.1, False),
        ("x ctranslate2", 1.1, True),
        ("of roofline", 0.9, False),
    ],
)
def test_a_miss_is_a_miss(figure: str, measured: float, met: bool) -> None:
    assert Outcome(Target("", "", "", "", figure, 1.0), measured).met is met


def test_kernels_against_the_fastest_peer(results: Results) -> None:
    for rows in results.kernels.values():
        assert {row.kernel for row in rows} <= set(STYLES)
        for case in cases(rows):
            of = (case.ours.kernel, case.ours.shape, case.ours.dtype)
            same = [row for row in rows if (row.kernel, row.shape, row.dtype) == of]
            assert case.peer.p50 == min(row.p50 for row in same if row.provider != "ours")
            assert case.ours.intensity > 0
        assert kernel_figure(rows).count("<title>") == 2 * len(cases(rows))
