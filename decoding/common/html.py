"""HTML for notebooks. Every text is escaped here, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

CELL = "text-align:left;padding:2px 10px"


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = (), title: str = "") -> str:
    """A table of texts. head: of the columns; title: above it."""
    caption = f"<caption {style('text-align:left;font-weight:bold')}>{escape(title)}</caption>"
    lines = ["<table>", caption if title else ""]
    lines += [row_of("th", head)] if head else []
    lines += [row_of("td", row) for row in rows]
    return "".join([*lines, "</table>"])


def row_of(tag: str, cells: Sequence[object]) -> str:
    found = "".join(f"<{tag} {style(CELL)}>{cell_of(cell)}</{tag}>" for cell in cells)
    return f"<tr>{found}</tr>"


class Shaded(str):
    """A text on a ground that is the darker the larger its share, 0 to 1."""

    share: float

    def __new__(cls, text: str, share: float) -> Shaded:
        shaded = super().__new__(cls, text)
        shaded.share = min(1.0, max(0.0, share))
        return shaded


def cell_of(cell: object) -> str:
    text = escape(str(cell))
    if not isinstance(cell, Shaded):
        return text
    ground = f"background:rgba(66,133,244,{0.6 * cell.share:.2f})"
    return f'<span {style(ground)} title="{cell.share:.3f}">{text}</span>'


def style(text: str) -> str:
    return f'style="{text}"'


def folded(title: str, content: str) -> str:
    """`content`, which is HTML, behind a line that opens it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def branch(cells: Sequence[object], end: str, below: Sequence[str]) -> str:
    """One item of a tree: texts side by side, what ends them, and the items below it, which are
    HTML. `tree` makes the whole of them."""
    texts = " ".join(cell_of(cell) for cell in cells)
    tail = f" <b>{escape(end)}</b>" if end else ""
    return f"<li>{texts}{tail}{tree(below)}</li>"


def tree(branches: Sequence[str]) -> str:
    return f"<ul>{''.join(branches)}</ul>" if branches else ""
