"""Kernels one by one against what the machine allows: a figure, a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.ticker import FuncFormatter, MultipleLocator, NullFormatter

from benchmarks.report.rows import KernelRow
from decoding.compare.report.page import Key
from decoding.compare.report.svg import COLOURS, axes, drawn
from decoding.compare.report.table import Table, number, percent, times

STYLES = {  # colour and marker; a colour for each part of a model
    "norm": ("blue", "o"),
    "rms_norm": ("blue", "s"),
    "softmax": ("green", "o"),
    "soft_cap": ("green", "s"),
    "embed": ("gold", "o"),
    "rotate": ("gold", "s"),
    "gate": ("gold", "^"),
    "linear": ("orange", "o"),
    "project": ("orange", "s"),
    "packed_attention": ("violet", "o"),
    "decode_attention": ("red", "o"),
    "packed_depthwise": ("violet", "s"),
    "decode_depthwise": ("red", "s"),
    "select": ("ink", "D"),
}
PEER = ("muted", "o")


@dataclass(frozen=True)
class Case:
    """Ours and the fastest peer on one shape."""

    ours: KernelRow
    peer: KernelRow


def cases(rows: Sequence[KernelRow]) -> list[Case]:
    groups: dict[tuple[str, str, str], list[KernelRow]] = {}
    for row in rows:
        groups.setdefault((row.kernel, row.shape, row.dtype), []).append(row)
    found = []
    for group in groups.values():
        [ours] = [row for row in group if row.provider == "ours"]
        peers = [row for row in group if row.provider != "ours"]
        found.append(Case(ours, min(peers, key=lambda row: row.p50)))
    return found


def kernel_figure(rows: Sequence[KernelRow]) -> str:
    """Share of the limit over operations for each byte, as SVG."""
    plot = axes(960, 380, bottom=46)
    found, notes = cases(rows), {}
    theirs = [case.peer for case in found]
    for name in dict.fromkeys(row.kernel for row in rows):
        ours = [case.ours for case in found if case.ours.kernel == name]
        colour, marker = STYLES.get(name, PEER)
        x, y = [row.intensity for row in ours], [row.roofline_share for row in ours]
        plot.plot(x, y, marker, color=COLOURS[colour], markersize=6.5, gid=name, zorder=3)
        notes[name] = list(map(note, ours))
    x, y = [row.intensity for row in theirs], [row.roofline_share for row in theirs]
    plot.plot(x, y, "o", color=COLOURS["muted"], markersize=3, alpha=0.55, gid="torch")
    notes["torch"] = list(map(note, theirs))
    plot.set_xscale("log")
    plot.set_ylim(0, 1.05 * max(1.0, plot.get_ylim()[1]))
    plot.axhline(1, color=COLOURS["ink"], linewidth=1.5, linestyle=(0, (3, 2)))
    plot.yaxis.set_major_locator(MultipleLocator(0.2))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    plot.xaxis.set_minor_formatter(NullFormatter())
    plot.set_xlabel("operations for each byte moved", fontsize=11, color=COLOURS["muted"])
    return drawn(plot, "Kernels: share of the limit over operations for each byte", notes)


def note(row: KernelRow) -> str:
    return (
        f"{row.provider}: {row.kernel} {row.shape} {row.dtype}, {number(row.p50)} us, "
        f"{percent(row.roofline_share)} of the roofline"
    )


def keys(rows: Sequence[KernelRow]) -> list[Key]:
    names = dict.fromkeys(row.kernel for row in rows)
    return [
        *(Key(name, *STYLES.get(name, PEER)) for name in names),
        Key("the fastest of torch's", *PEER),
        Key("limit", "ink", "limit"),
    ]


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """A line for each kernel: medians and ranges over its shapes."""
    head = ["", "shapes", "of the roofline", "x the fastest of torch's"]
    found = cases(rows)
    lines = []
    for name in dict.fromkeys(case.ours.kernel for case in found):
        same = [case for case in found if case.ours.kernel == name]
        shares = [case.ours.roofline_share for case in same]
        ratios = [case.peer.p50 / case.ours.p50 for case in same]
        lines.append([name, str(len(same)), spread(shares, percent), spread(ratios, times)])
    return Table(head, lines)


def spread(values: Sequence[float], written: Callable[[float], str]) -> str:
    """ "0.5 (0.2 to 0.9)"."""
    low, middle, high = (written(f(values)) for f in (min, median, max))
    return f"{middle} ({low} to {high})" if len(values) > 1 else middle


def case_table(rows: Sequence[KernelRow]) -> Table:
    """A line for each provider on each shape."""
    head = ["", "by", "us", "roofline", "of roofline", "MB", "operations/byte", "GB/s"]
    lines = [
        [f"{row.kernel} {row.shape} {row.dtype}", row.provider]
        + [*map(number, (row.p50, row.roofline_bound)), percent(row.roofline_share)]
        + [*map(number, (row.megabytes, row.intensity, row.rate))]
        for row in rows
    ]
    return Table(head, lines)
