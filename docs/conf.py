"""How Sphinx builds this folder: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "decoding"
author = "the decoding project"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "decoding"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

FIELD = re.compile(r"(\w+(?:, \w+)*): +(.*)")
MARKUP = re.compile(r"[*`|\\]|(?<=\w)_(?=\W|$)")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_restructured_text)


def as_restructured_text(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Our docstrings are plain text: "name: meaning" lines become fields, code becomes literal."""
    lines[:] = [line for block in blocks(lines) for line in (*converted(block), "")]


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """The paragraphs: what stands between blank lines."""
    found: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            found.append(line)
        elif found:
            yield found
            found = []


def converted(block: list[str]) -> Iterator[str]:
    if all(line.startswith("    ") for line in block):
        yield from ("::", "", *block)
        return
    if block[0] == "Args:":
        block = dedent("\n".join(block[1:])).splitlines()
    fields = bool(FIELD.match(block[0])) and not block[0].startswith("Returns")
    for line in block:
        text = MARKUP.sub(r"\\\g<0>", line.strip())
        found = FIELD.match(line) if fields else None
        if found:
            yield f":{found[1]}: {text.partition(': ')[2]}"
        else:
            yield f"    {text}" if fields else text
