"""Renders sections of figures, tables and answers as a self-contained HTML page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from decoding.compare.report.styles import style
from decoding.compare.report.table import Table


@dataclass(frozen=True)
class Tile:
    """A key figure, its description, and where it was measured."""

    value: str
    text: str
    where: str = ""


@dataclass(frozen=True)
class Key:
    """An entry of a legend. shape: of svg.py's markers, or "limit"."""

    name: str
    colour: str
    shape: str


@dataclass(frozen=True)
class Figure:
    """unit: of its axis. wide: as broad as the page."""

    title: str
    svg: str
    unit: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Pair:
    """A line that two engines answer differently, the words that differ marked."""

    title: str
    source: str
    expected_by: str
    expected: Markup
    found_by: str
    found: Markup


@dataclass(frozen=True)
class Section:
    """title: "" of a chapter's only one. folded: its tables open on request."""

    title: str = ""
    text: Sequence[str] = ()
    legend: Sequence[Key] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[tuple[str, Table]] = ()  # with their captions
    pairs: Sequence[Pair] = ()
    folded: bool = False


@dataclass(frozen=True)
class Chapter:
    """What the page's list of contents names."""

    title: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Page:
    """lead: a line under the title. conditions: what was measured where, in small print."""

    title: str
    lead: str
    tiles: Sequence[Tile]
    chapters: Sequence[Chapter]
    conditions: Sequence[str]

    def html(self) -> str:
        environment = Environment(
            loader=PackageLoader("decoding.compare.report", "."),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"anchor": anchor, "strong": strong}
        return environment.get_template("page.html").render(page=self)


def legend(engines: Sequence[str], *, limit: bool = False) -> list[Key]:
    keys = [
        Key(style(engine).name, style(engine).colour, style(engine).marker) for engine in engines
    ]
    return [*keys, *[Key("roofline bound", "ink", "limit")] * limit]


def strong(cell: str) -> Markup:
    """A table's cell, with emphasised text in `<strong>`."""
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(Markup.escape(cell))))


def anchor(title: str) -> str:
    """A chapter's name in the address of the page."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())
