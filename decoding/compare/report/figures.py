"""Draws the figures of a facet: times and memory of its engines, over batches and beams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from decoding.compare.report.facets import Facet, Shape
from decoding.compare.report.styles import style
from decoding.compare.report.svg import COLOURS, axes, drawn
from decoding.compare.report.table import number, percent
from decoding.compare.results import Run

GAP = 0.5  # between shapes of different beams, in distances of two shapes


@dataclass(frozen=True)
class Measure:
    """A quantity of runs that a figure shows. limit: the roofline bound in the same unit.
    spread: percentiles, shown as a line through the point."""

    name: str
    unit: str
    value: Callable[[Run], float]
    limit: Callable[[Run], float] | None = None
    spread: Callable[[Run], tuple[float, float]] | None = None
    logarithmic: bool = False
    written: Callable[[float], str] = number

    def known(self, facet: Facet) -> bool:
        return any(math.isfinite(self.value(run)) for run in facet.runs)

    def note(self, run: Run, shape: str) -> str:
        value = f"{self.written(self.value(run))} {self.unit}".rstrip()
        between = ""
        if self.spread:
            between = " ({} to {})".format(*map(self.written, self.spread(run)))
        return f"{style(run.engine).name} {shape}: {value}{between}"


LATENCY = Measure(
    "Latency",
    "ms a step",
    lambda run: run.p50,
    limit=lambda run: run.roofline_bound,
    spread=lambda run: (run.p20, run.p80),
    logarithmic=True,
)
THROUGHPUT = Measure("Throughput", "tokens a second", lambda run: run.rate, logarithmic=True)
SHARE = Measure(
    "Share of roofline", "", lambda run: run.roofline_share, lambda _: 1.0, written=percent
)
MEMORY = Measure("Memory", "MB", lambda run: run.memory)


def figure(facet: Facet, measure: Measure, low: float, high: float) -> str:
    """An SVG whose axis goes from low to high. Lines join the batches of one number of beams."""
    plot = axes(bottom=44)
    places = shape_places(facet.shapes)
    notes: dict[str, list[str]] = {}
    if measure.limit:
        draw_limit(plot, facet, measure, places)
    for engine in facet.engines:
        for beams, group in groupby(facet.shapes, lambda shape: shape[0]):
            runs = {shape: facet.at(shape).get(engine) for shape in group}
            found = {s: r for s, r in runs.items() if r and math.isfinite(measure.value(r))}
            if found:
                name = f"{engine} {beams}"
                draw_line(plot, name, found, measure, places)
                notes[name] = [measure.note(r, facet.shape_name(s)) for s, r in found.items()]
    scale(plot, measure, low, high)
    name_shapes(plot, facet, places)
    return drawn(plot, f"{measure.name}: {facet.title}", notes)


def shape_places(shapes: Sequence[Shape]) -> dict[Shape, float]:
    """The position of each shape on the axis: batches of equal beams side by side."""
    places, at = {}, 0.0
    for i, shape in enumerate(shapes):
        at += GAP * (i > 0 and shapes[i - 1][0] != shape[0])
        places[shape] = at
        at += 1
    return places


def draw_line(
    plot: Axes, name: str, runs: dict[Shape, Run], measure: Measure, places: dict[Shape, float]
) -> None:
    drawing = style(next(iter(runs.values())).engine)
    colour = COLOURS[drawing.colour]
    x = [places[shape] for shape in runs]
    y = [measure.value(run) for run in runs.values()]
    if measure.spread:
        low, high = zip(*map(measure.spread, runs.values()), strict=True)
        plot.vlines(x, low, high, color=colour, linewidth=1)
    plot.plot(x, y, color=colour, linewidth=1.8)
    plot.plot(x, y, drawing.marker, color=colour, markersize=6.5, gid=name)


def draw_limit(plot: Axes, facet: Facet, measure: Measure, places: dict[Shape, float]) -> None:
    """A dash at the limit of each shape."""
    assert measure.limit
    for shape, at in places.items():
        limits = [measure.limit(run) for run in facet.at(shape).values()]
        known = [limit for limit in limits if math.isfinite(limit)]
        if known:
            ends = (at - 0.34, at + 0.34)
            plot.hlines(known[0], *ends, color=COLOURS["ink"], linewidth=1.5, linestyle=(0, (3, 2)))


def bounds(facets: Sequence[Facet], measure: Measure) -> tuple[float, float]:
    """The ends of an axis that shows all facets, with some room."""
    runs = [run for facet in facets for run in facet.runs]
    seen = [measure.value(run) for run in runs]
    seen += [measure.limit(run) for run in runs] if measure.limit else []
    known = [value for value in seen if math.isfinite(value) and value > 0]
    if measure.logarithmic:
        return min(known) / 1.4, max(known) * 1.4
    return 0, 1.08 * max(known)


def scale(plot: Axes, measure: Measure, low: float, high: float) -> None:
    if measure.logarithmic:
        plot.set_yscale("log")
        decades = math.log10(high / low)
        steps = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 2.8 else (1,)
        plot.yaxis.set_major_locator(LogLocator(subs=steps))
        plot.yaxis.set_minor_formatter(NullFormatter())
    else:
        plot.yaxis.set_major_locator(MaxNLocator(5))
    plot.set_ylim(low, high)
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(measure, value)))


def tick(measure: Measure, value: float) -> str:
    """A label of the axis, without the trailing zeros of number()."""
    if measure.written is percent:
        return percent(value)
    if value >= 1_000_000:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 10_000 else f"{value:g}"


def name_shapes(plot: Axes, facet: Facet, places: dict[Shape, float]) -> None:
    """Writes batches under the axis, and the beams below them."""
    plot.set_xticks(list(places.values()), [str(batch) for _, batch in places])
    plot.set_xlim(-0.6, max(places.values()) + 0.6)
    for beams, group in groupby(places, lambda shape: shape[0]):
        at = [places[shape] for shape in group]
        name = "sampled" if facet.sampled else "greedy" if beams == 1 else f"{beams} beams"
        write_below(plot, name, sum(at) / len(at), -34, "center")
    write_below(plot, "batch", -0.7, -19, "right")


def write_below(plot: Axes, text: str, x: float, points: float, align: str) -> None:
    """x: on the axis; points: from the axis to the text, downwards negative."""
    plot.annotate(
        text,
        (x, 0),
        (0, points),
        xycoords=plot.get_xaxis_transform(),
        textcoords="offset points",
        ha=align,
        fontsize=11,
        color=COLOURS["muted"],
        annotation_clip=False,
    )
