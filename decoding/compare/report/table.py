"""Tables for a terminal, for Markdown and for a page, and the formats of their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """head: names of the columns, the first of which names the row. rows: texts, "" where a value
    is missing; failures stand between ** and **."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---", *["--:"] * (len(self.head) - 1)], *self.rows]
        return "\n".join(
            "|".join(["", *(f" {cell} " if cell else " " for cell in line), ""]) for line in lines
        )

    def text(self) -> str:
        """Aligned columns, numbers on the right."""
        lines = [[cell.replace("**", "") for cell in line] for line in (self.head, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


def number(value: float) -> str:
    """Three digits; "" for a number that is not finite."""
    if not math.isfinite(value):
        return ""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if abs(rounded) >= 10_000:
        return f"{rounded:,.0f}"
    # A number that rounds up to another power of ten has one decimal less.
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, digits)}f}"


def times(value: float) -> str:
    """A ratio: two digits, three from 10 on."""
    if not math.isfinite(value):
        return ""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def percent(value: float) -> str:
    """A share from 0 to 1 in percent; "100 %" only for 1."""
    if not math.isfinite(value):
        return ""
    hundredths = 100 * value
    if 99.5 <= hundredths < 100:
        return f"{math.floor(10 * hundredths) / 10:.1f} %"
    return f"{hundredths:.0f} %"


def listed(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
