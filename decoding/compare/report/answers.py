"""Tables of the engines' answers: how many are the same, their quality, where they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import SequenceMatcher

from markupsafe import Markup

from decoding.compare.report.page import Pair
from decoding.compare.report.styles import called, style
from decoding.compare.report.table import Table, number, percent
from decoding.compare.results import Check

PAIRS = 12  # shown of all engines together


def answer_table(checks: Sequence[Check]) -> Table:
    """A line for each engine, type and number of beams. Empty columns are left out."""
    head = ["", "the same answer", "of lines", "score differs by at most", "on average"]
    head += ["BLEU", "chrF", "error"]
    rows = []
    for check in checks:
        scores = map(difference, (check.largest, check.mean))
        quality = (f"{q:.2f}" if math.isfinite(q) else "" for q in (check.bleu, check.chrf))
        same = percent(check.share)
        rows.append([name(check), same, str(check.sentences), *scores, *quality, check.error])
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return Table([head[i] for i in used], [[row[i] for i in used] for row in rows])


def name(check: Check) -> str:
    beams = f"{check.beams} beams" if check.beams > 1 else "greedy"
    return f"{style(check.engine).name} {check.dtype}, {beams}"


def difference(value: float) -> str:
    """A difference of scores; one below the shown digits is written as a power of ten."""
    return f"{value:.0e}" if 0 < value < 0.001 else number(value)


def pairs(checks: Sequence[Check]) -> list[Pair]:
    """The first differing lines, engines in turns, at most PAIRS."""
    found = []
    most = max((len(check.differing) for check in checks), default=0)
    for i in range(most):
        for check in checks:
            for line in check.differing[i : i + 1]:
                expected, other = marked(line.expected, line.found)
                found.append(
                    Pair(
                        title=f"Line {line.line}",
                        source=line.source,
                        expected_by=called(check.reference),
                        expected=expected,
                        found_by=name(check),
                        found=other,
                    )
                )
    return found[:PAIRS]


def marked(expected: str, found: str) -> tuple[Markup, Markup]:
    """Both texts, with the words that only one of them has in `<mark>`."""
    a, b = expected.split(" "), found.split(" ")
    left: list[Markup] = []
    right: list[Markup] = []
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for words, side in ((a[a0:a1], left), (b[b0:b1], right)):
            if words:
                text = Markup.escape(" ".join(words))
                side.append(text if kind == "equal" else Markup("<mark>{}</mark>").format(text))
    return Markup(" ").join(left), Markup(" ").join(right)
