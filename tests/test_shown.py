"""Short texts of models, plans and scores, and their HTML in notebooks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

import decoding
from decoding.common import html
from decoding.common.shapes import counted
from tests.support.random_models import ours


class Closed(HTMLParser):
    """Fails where a tag is not closed; keeps the texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def html_texts(value: Any) -> list[str]:
    return Closed(value._repr_html_()).texts


def test_a_model() -> None:
    model = decoding.load("demo", device="cpu", dtype="float32", threads=2)
    assert repr(model) == "Model(marian, 8.17 M weights, float32, cpu, 2 threads)"
    texts = html_texts(model)
    assert texts[:3] == ["Model (marian)", "architecture", "MarianMTModel"]
    assert any(re.fullmatch(r"8.17 M, \d+\.\d MB", text) for text in texts)
    assert any(re.fullmatch(r"\d layers, \d+ wide, \d+ tokens, 512 positions", t) for t in texts)
    model.close()
    assert repr(model) == "Model(marian, closed)" and html_texts(model) == ["Model(marian, closed)"]


def test_a_plan() -> None:
    plan = ours("gpt2").memory_plan(decoding.Limits(batch=2, beams=3, target=5))
    assert re.match(r"MemoryPlan\(\d+\.\d [kM]B in \d+ buffers for batch 2, beams 3", repr(plan))
    assert "object at" not in repr(plan) + plan._repr_html_()
    texts = html_texts(plan)
    assert texts[0] == repr(plan) and {b.name for b in plan.buffers} <= set(texts)


def test_scores() -> None:
    scores = ours("gpt2").score([[3, 4, 5], [6, 7]])
    sums = ", ".join(f"{each:.3f}" for each in scores.sums.tolist())
    said = f"Scores(2 rows, 3 labels, sums=[{sums}], perplexity={scores.perplexity:.4g})"
    assert repr(scores) == said
    assert html_texts(scores)[0] == said and f"{float(scores.sums[1]):.3f}" in html_texts(scores)
    many = ours("gpt2").score([[3, 4]] * 9)
    assert "..." in repr(many) and len(repr(many)) < 120


def test_everything_is_escaped() -> None:
    text = html.table([["<b>", html.Shaded("<i>", 0.5)]], ["&"], title="<x>")
    text += html.branch(["<u>"], "<s>", []) + html.folded("<p>", "")
    assert Closed(text).texts == ["<x>", "&", "<b>", "<i>", "<u> ", "<s>", "<p>"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (7_860_000, "7.86 M"), (1.24e9, "1.24 G")]
)
def test_counts(number: int, text: str) -> None:
    assert counted(number) == text
