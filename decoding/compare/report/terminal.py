"""A comparison on one screen of a terminal."""

from __future__ import annotations

import math

from decoding.compare.report.conditions import conditions
from decoding.compare.report.facets import facets, failures, step_table, summary
from decoding.compare.report.styles import called, style
from decoding.compare.results import Check, Comparison


def terminal(comparison: Comparison) -> str:
    """Whether the answers are the same, milliseconds of a step, and the conditions."""
    found = facets(comparison)
    peers = dict.fromkeys(peer for facet in found for peer in facet.peers)
    parts = [
        [same(check) for check in comparison.checks],
        ["Milliseconds a step, BATCHxBEAMS:", step_table(found).text()] if found else [],
        failures(found),
        [f"decoding is {text}" for peer in peers if (text := summary(found, peer))],
        conditions(comparison),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def same(check: Check) -> str:
    """A line on an engine's answers beside the reference's."""
    beams = f"{check.beams} beams" if check.beams > 1 else "greedy"
    who = f"{style(check.engine).name} {check.dtype}, {beams}"
    if check.error:
        return f"{who}: {check.error}"
    said = f"{who}: {check.identical} of {check.sentences} lines as {called(check.reference)}"
    if math.isfinite(check.largest):
        said += f", scores within {check.largest:.1g}"
    if math.isfinite(check.bleu):
        said += f", BLEU {check.bleu:.2f}, chrF {check.chrf:.2f}"
    return said
