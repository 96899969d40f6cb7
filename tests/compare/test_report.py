"""A comparison's table and page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.compare.report.answers import answer_table, marked, pairs
from decoding.compare.report.facets import by_peers, facets, failures, step_table, summary
from decoding.compare.report.sections import comparison_page
from decoding.compare.report.table import Table, number, percent
from decoding.compare.report.terminal import terminal
from decoding.compare.results import Ceilings, Check, Comparison, Difference, Machine, Run

RUN = Run("ours", "decoding 1", "avx2", "float32", "cpu", 1, 1, 64, 32, bound_by="memory")


def run(engine: str, batch: int, beams: int, p50: float, dtype: str = "float32") -> Run:
    found = replace(RUN, engine=engine, version=f"{engine} 1", dtype=dtype, batch=batch)
    found = replace(found, beams=beams, p20=0.9 * p50, p50=p50, p80=1.2 * p50, memory=200.0)
    found = replace(found, rate=1e3 * batch / p50, roofline_bound=1.0 + batch / 10)
    return replace(found, bytes=4e7, flops=2e7 * batch)


def compared() -> Comparison:
    """Two engines and a third that failed, on two batches and two numbers of beams; a type that
    one engine alone has."""
    shapes = [(batch, beams) for beams in (1, 4) for batch in (1, 8)]
    runs = [run("huggingface", *shape, 8.0 * shape[1]) for shape in shapes]
    runs += [run("ours", *shape, 2.0 * shape[1]) for shape in shapes]
    runs += [run("ours", *shape, 1.5 * shape[1], "int8") for shape in shapes]
    failed = replace(RUN, engine="ctranslate2", batch=8, beams=4, error="out of time after 60 s")
    difference = Difference(3, "Ein <b>Haus</b>", "A small house .", "A big house .")
    check = Check("ours", "float32", "cpu", 4, "huggingface float32 cpu", 100, 99, 2e-6, 1e-7)
    checks = (check, replace(check, dtype="int8", identical=80, differing=(difference,)))
    ceilings = {"float32": Ceilings(41e9, 490e9), "int8": Ceilings(41e9, 2e12)}
    machine = Machine("AMD EPYC", "avx2", 2, "1a2b3c", "2026-11-21", ceilings)
    return Comparison("demo", "german.txt", "out", 5, {"cpu": machine}, checks, (*runs, failed))


@given(st.floats(1e-6, 1e9))
def test_numbers_have_three_digits(value: float) -> None:
    written = number(value)
    assert float(written.replace(",", "")) == pytest.approx(value, rel=0.0051)
    digits = re.sub("[,.]", "", written).lstrip("0")
    assert len(digits) == 3 or (value >= 1000 and "." not in written)


def test_numbers() -> None:
    found = [number(x) for x in (9.996, 0.09996, 999.6, 0.0, -1.5, math.nan, 54321.0)]
    assert found == ["10.0", "0.100", "1000", "0", "-1.50", "", "54,300"]
    assert [percent(x) for x in (0.5, 0.9999, 1.0, math.nan)] == ["50 %", "99.9 %", "100 %", ""]


def test_a_table_as_text_and_as_markdown() -> None:
    table = Table(["", "ms", "x"], [["a", "1.5", ""], ["long name", "**failed**", "2"]])
    assert table.text().splitlines() == [
        "               ms  x",
        "a             1.5",
        "long name  failed  2",
    ]
    assert table.markdown().splitlines() == [
        "| | ms | x |",
        "| --- | --: | --: |",
        "| a | 1.5 | |",
        "| long name | **failed** | 2 |",
    ]


def test_steps_side_by_side() -> None:
    found = facets(compared())
    assert [facet.title for facet in found] == ["float32", "int8"]
    table = step_table(found)
    assert table.head == [
        "", "roofline", "by", "transformers", "CTranslate2", "decoding",
        "x transformers", "x CTranslate2", "of roofline",
    ]  # fmt: skip
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["float32 1x1"] == ["1.10", "memory", "8.00", "-", "2.00", "4.0", "", "55 %"]
    assert cells["float32 8x4"] == [
        "1.80",
        "memory",
        "32.0",
        "**failed**",
        "8.00",
        "4.0",
        "",
        "22 %",
    ]
    assert cells["int8 1x1"] == ["1.10", "memory", "-", "-", "1.50", "", "", "73 %"]
    assert failures(found) == ["CTranslate2 float32 8x4: out of time after 60 s"]
    assert summary(found, "huggingface") == "4.0 times as fast as transformers (median; 4.0 to 4.0)"
    assert summary(found, "ctranslate2") == ""


def test_facets_share_a_table_where_one_has_the_peers_of_the_others() -> None:
    runs = [run(engine, 1, 1, 2.0, dtype) for engine, dtype in (
        ("huggingface", "float32"), ("ctranslate2", "float32"), ("ours", "float32"),
        ("ctranslate2", "int8"), ("ours", "int8"), ("huggingface-static", "float16"),
    )]  # fmt: skip
    groups = by_peers(facets(replace(compared(), runs=tuple(runs))))
    assert [[facet.title for facet in group] for group in groups] == [
        ["float32", "int8"],
        ["float16"],
    ]


def test_one_screen() -> None:
    text = terminal(compared())
    assert len(text.splitlines()) < 40 and max(map(len, text.splitlines())) <= 132
    for said in ("99 of 100 lines as transformers float32", "out of time after 60 s", "41.0 GB/s",
                 "decoding is 4.0 times as fast as transformers", "german.txt"):  # fmt: skip
        assert said in text
    assert "nan" not in text and "**" not in text


def test_what_failed_or_was_interrupted_is_shown_too() -> None:
    nothing = replace(compared(), checks=(), runs=(replace(RUN, error="died"),), finished=False)
    assert "died" in terminal(nothing) and "Interrupted" in terminal(nothing)
    assert "died" in comparison_page(nothing).html()
    empty = replace(nothing, runs=())
    assert "Interrupted" in terminal(empty) and "Interrupted" in comparison_page(empty).html()


def test_answers() -> None:
    checks = compared().checks
    table = answer_table(checks)
    assert "BLEU" not in table.head and "error" not in table.head  # nobody has them
    assert table.rows[0][:3] == ["decoding float32, 4 beams", "99 %", "100"]
    [pair] = pairs(checks)
    assert (pair.title, pair.source) == ("Line 3", "Ein <b>Haus</b>")
    assert pair.expected == "A <mark>small</mark> house ."
    assert pair.found == "A <mark>big</mark> house ."
    assert marked("a <i>", "a b")[0] == "a <mark>&lt;i&gt;</mark>"


class Reader(HTMLParser):
    """Tags that are open, all text, and what would be fetched."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        names = {name: value or "" for name, value in attributes}
        self.fetched += [names[name] for name in ("src", "href", "xlink:href") if name in names]
        assert tag not in ("script", "link", "img", "iframe")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def test_the_page_needs_nothing_else() -> None:
    html = comparison_page(compared()).html()
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert all(address.startswith("#") for address in reader.fetched)
    anchors = {address[1:] for address in reader.fetched}
    assert anchors <= set(re.findall(r'id="([^"]+)"', html))
    assert not re.search(r"url\((?!#)|@import", html)
    text = " ".join(reader.texts)
    assert not re.search(r"\bnan\b|\binf\b|None", text)
    for said in ("Ein <b>Haus</b>", "out of time after 60 s", "Share of roofline", "1a2b3c"):
        assert said in text


def test_figures_show_every_run() -> None:
    html = comparison_page(compared()).html()
    notes = re.findall(r"<title>([^<]+)</title>", html)
    assert "transformers 8x4: 32.0 ms a step (28.8 to 38.4)" in notes
    assert "decoding 1x1: 73 %" in notes
    ran = [run for run in compared().runs if not run.error]
    assert len(notes) == 1 + 4 * len(ran)  # the page's own; each run in each of four figures
    assert html.count('role="img"') == 4 * 2
    assert comparison_page(compared()).html() == html  # the same file again
