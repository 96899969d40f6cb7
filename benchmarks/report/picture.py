"""README's picture: seconds that a file takes, ours beside CTranslate2 and transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report.rows import read_lines
from benchmarks.report.views import Line
from decoding.compare.report.styles import OURS, style
from decoding.compare.report.svg import COLOURS, POINTS_PER_INCH, SVG, drawn
from decoding.compare.report.table import listed, number

DTYPES = {"translate-cpu.csv": ("float32", "int8"), "translate-cuda.csv": ("float16",)}
ENGINES = (OURS, "ctranslate2", "huggingface")  # from top to bottom
TITLE = "Seconds to translate a file"
NOTE = "Whole programs from start to end; the same model, text and beams. Shorter is better."
THEMES = {  # a page's colours, as in page.html
    "light": {"ink": "#1b1c1e", "muted": "#66696e", "blue": "#2463c4", "grid": "#b9bbbf"},
    "dark": {"ink": "#ececea", "muted": "#9da1a8", "blue": "#6aa2f7", "grid": "#5b5f66"},
}
FONT = 'text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important; }'

WIDTH, TOP, BAR, HEADING, GAP = 800, 74, 30, 34, 14  # pixels
LEFT, RIGHT = 130, 84  # beside the bars: names, seconds


@dataclass(frozen=True)
class Group:
    """Engines of one run in one type. seconds: by engine, in the order of ENGINES."""

    file: str
    name: str
    seconds: dict[str, float]

    @property
    def sentence(self) -> str:
        said = [f"{style(engine).name} {number(s)} s" for engine, s in self.seconds.items()]
        return f"{self.name}: {listed(said)}."


def read_groups(folder: Path) -> list[Group]:
    """Those of DTYPES that were recorded."""
    groups = []
    for file, dtypes in DTYPES.items():
        recorded = read_lines(folder / file) if (folder / file).exists() else []
        for dtype in dtypes:
            rows = {row["provider"]: row for row in recorded if row["dtype"] == dtype}
            found = {engine: rows[engine] for engine in ENGINES if engine in rows}
            if not found:
                continue
            name = f"{place(next(iter(found.values())))}, {dtype}"
            seconds = {engine: float(row["p50"]) for engine, row in found.items()}
            groups.append(Group(file, name, seconds))
    return groups


def place(row: Line) -> str:
    """ "AMD EPYC, 2 threads: 3,000 sentences"."""
    machine, sentences = row["device"].partition(",")[0], int(row["lines"])
    threads = f", {row['threads']} threads" if row["threads"] != "0" else ""
    return f"{machine}{threads}: {sentences:,} sentences"


def picture(groups: Sequence[Group], theme: str) -> str:
    """An SVG file with a title and, as its description, all that it shows. theme: of THEMES."""
    root = ElementTree.fromstring(drawn(plot(groups), TITLE, {}))
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib |= {"width": width, "height": height}
    said = " ".join([NOTE, *(group.sentence for group in groups)])
    for i, (tag, text) in enumerate((("title", TITLE), ("desc", said), ("style", FONT))):
        element = ElementTree.Element(f"{{{SVG}}}{tag}")
        element.text = text
        root.insert(i, element)
    svg = ElementTree.tostring(root, encoding="unicode")
    for name, colour in THEMES[theme].items():
        svg = svg.replace(f"var(--{name})", colour)
    return svg + "\n"


def plot(groups: Sequence[Group]) -> Axes:
    """Bars from top to bottom, in pixels; groups of one file share a scale."""
    height = TOP + sum(HEADING + BAR * len(group.seconds) + GAP for group in groups)
    figure = Figure(figsize=(WIDTH / POINTS_PER_INCH, height / POINTS_PER_INCH))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    write(axes, 0, 22, TITLE, size=20, weight="bold")
    write(axes, 0, 50, NOTE, colour="muted")
    y = TOP
    for group in groups:
        longest = max(max(each.seconds.values()) for each in groups if each.file == group.file)
        write(axes, 0, y + HEADING / 2, group.name, weight="bold")
        y += HEADING
        for engine, seconds in group.seconds.items():
            draw_bar(axes, y, engine, seconds, (WIDTH - LEFT - RIGHT) / longest)
            y += BAR
        y += GAP
    return axes


def draw_bar(axes: Axes, y: float, engine: str, seconds: float, scale: float) -> None:
    """scale: pixels of a second."""
    middle, ours = y + BAR / 2, engine == OURS
    colour = COLOURS["blue" if ours else "grid"]
    axes.barh(middle, seconds * scale, BAR - 8, left=LEFT, color=colour, clip_on=False)
    weight = "bold" if ours else "normal"
    write(axes, LEFT - 10, middle, style(engine).name, weight=weight, align="right")
    write(axes, LEFT + seconds * scale + 8, middle, f"{number(seconds)} s", weight=weight)


def write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float = 15,
    weight: str = "normal",
    colour: str = "ink",
    align: str = "left",
) -> None:
    axes.text(
        x, y, text, size=size, weight=weight, color=COLOURS[colour], ha=align, va="center_baseline"
    )
