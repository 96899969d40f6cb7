"""Matplotlib's figures as SVG of a page: in its fonts, its colours by name, light or dark.

Figures are drawn in stand-in colours, which become the page's variables (page.html).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from matplotlib.axes import Axes
from matplotlib.figure import Figure

VARIABLES = ("ink", "muted", "grid", "blue", "orange", "green", "violet", "red", "gold")
COLOURS = {name: f"#0000{number:02x}" for number, name in enumerate(VARIABLES, 1)}

WIDTH, HEIGHT = 350, 220  # of a figure, in the page's pixels before it is fitted
POINTS_PER_INCH = 72
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def axes(width: int = WIDTH, height: int = HEIGHT, bottom: int = 36) -> Axes:
    """An empty figure of these pixels, with faint horizontal lines and nothing else around it."""
    figure = Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))
    left, right, top = 44, 8, 10
    box = (left, bottom, width - left - right, height - bottom - top)
    plot = figure.add_axes(
        (box[0] / width, box[1] / height, box[2] / width, box[3] / height), facecolor="none"
    )
    plot.spines[["top", "left", "right"]].set_visible(False)
    plot.spines["bottom"].set_color(COLOURS["grid"])
    plot.grid(axis="y", color=COLOURS["grid"], linewidth=0.8)
    plot.set_axisbelow(True)
    plot.tick_params(axis="x", pad=9)
    plot.tick_params(which="both", length=0, labelsize=11, labelcolor=COLOURS["muted"])
    return plot


def drawn(plot: Axes, label: str, notes: Mapping[str, Sequence[str]]) -> str:
    """The figure's `<svg>` element.

    label: the figure's description for screen readers. notes: by an artist's gid the text of each
    of its points, which shows under a pointer.
    """
    import matplotlib

    file, figure = io.StringIO(), plot.get_figure(root=True)
    assert figure is not None
    # Text stays text, and equal figures are equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        for point, note in zip(points(element), notes.get(element.get("id", ""), ()), strict=False):
            ElementTree.SubElement(point, f"{{{SVG}}}title").text = note
    for element in root.iter(f"{{{SVG}}}g"):
        element.attrib.pop("id", None)  # matplotlib's names are the same in every figure
    for style in root.findall(f"{{{SVG}}}defs"):
        root.remove(style)
    for size in ("width", "height", "version"):
        root.attrib.pop(size)
    root.attrib |= {"role": "img", "aria-label": label}
    text = ElementTree.tostring(root, encoding="unicode")
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text


def points(element: ElementTree.Element) -> list[ElementTree.Element]:
    """The markers of a line or scatter."""
    return element.findall(f".//{{{SVG}}}use")
