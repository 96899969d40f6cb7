"""Tables of what else is in results/: what names a row, a column, and which numbers are there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.report.recorded import MODELS
from benchmarks.report.rows import read_lines
from decoding.compare.report.styles import style
from decoding.compare.report.table import Table, number, percent
from decoding.compare.results import Machine

Line = dict[str, str]


@dataclass(frozen=True)
class Cell:
    """A column with numbers, its name in the table, how they are written, and for which names
    across: empty, for all."""

    column: str
    name: str
    written: Callable[[float], str] = number
    across: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """files: a pattern in results/. down, across: names of the table's rows and columns, from those
    of a line's columns. text: the same of the first line's. given: which lines, by what stands in
    their columns; empty: all."""

    title: str
    files: str
    text: str
    down: str
    across: str
    cells: Sequence[Cell]
    given: Mapping[str, str] = field(default_factory=dict)


def hundredths(value: float) -> str:
    return f"{value:.2f}"


def tenths(share: float) -> str:
    return f"{100 * share:.1f} %"


def multiple(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else ""


def whole(value: float) -> str:
    return f"{value:.0f}"


ENCODERS = View(
    "Encoders",
    "encode-*.csv",
    "The table shows the milliseconds (medians) that each library takes for the hidden states of "
    "texts whose lengths are on average 0.6 of the longest.",
    down="{model}, {batch} texts of up to {length} tokens, {dtype}",
    across="{engine}",
    cells=[Cell("p50", "")],
)
PROGRAMS = View(
    "Whole programs",
    "translate-*.csv",
    "Programs translate a file; their times are from the start of the process to its end. All "
    "models but demo have random weights, and are forced to the lengths of the references, so that "
    "BLEU and equal lines mean nothing there.",
    down="{model}: {provider} {dtype}",
    across="",
    cells=[
        Cell("p50", "seconds"),
        Cell("ratio", "times ours in that type", multiple),
        Cell("sentences", "sentences/s"),
        Cell("tokens", "tokens/s"),
        Cell("memory", "MB"),
        Cell("bleu", "BLEU", hundredths),
        Cell("equal", "lines as the first", whole),
        Cell("lines", "of", whole),
    ],
)
QUALITY = View(
    "Quality of types",
    "quality-*.csv",
    "The model {model} translates with {beams} beams in each type of weights; `the same` is the "
    "share of lines with the very text that {dtype} gives.",
    down="{text}, {lines} lines",
    across="{dtype}",
    cells=[
        Cell("bleu", "BLEU", hundredths),
        Cell("chrf", "chrF", hundredths),
        Cell("identical", "the same", tenths),
    ],
)
CONTROLS = View(
    "What controls add",
    "controls-*.csv",
    "The table shows the share of a step that controls add to it; where that is less than the "
    "noise it can be negative.",
    down="{model} {shape} {dtype}",
    across="{controls}",
    cells=[Cell("added", "", percent)],
)
TRAINING = View(
    "Operators of training",
    "training-*.csv",
    "The table shows `decoding.nn` in {dtype}: microseconds, the share of the roofline (the bytes "
    "at the speed of a copy, or the arithmetic of products), and the memory that a call takes "
    "beside its inputs. `both` includes the backward pass.",
    down="{operator} {shape}, {passes}",
    across="{provider}",
    cells=[
        Cell("p50", "us"),
        Cell("roofline_share", "of roofline", percent, across=("decoding",)),
        Cell("memory", "MB", whole, across=("torch", "decoding")),
    ],
)
UPDATES = View(
    "An update of the demo model",
    "train-demo-*.csv",
    "The table shows the milliseconds (medians) of an update, eagerly and as a CUDA graph, and the "
    "memory that an eager one takes beside weights and optimizer, with decoding.nn and with torch's"
    " own modules.",
    down="{tokens} tokens, R-Drop {r_drop}",
    across="{provider}",
    cells=[Cell("p50", "ms"), Cell("memory", "MB", whole, across=("decoding", "torch"))],
)
SERVING = View(
    "Serving",
    "serving-*.csv",
    "Clients send requests at random times, so many a second, or all at once (inf). Requests and "
    "tokens are those that were served in a second, goodput the requests that kept the limits; "
    "times are milliseconds to the first token, from token to token and to the end.",
    down="{workload} {dtype}, {rate}/s, {provider}",
    across="",
    cells=[
        Cell("served", "requests/s"),
        Cell("tokens", "tokens/s"),
        Cell("goodput", "goodput"),
        Cell("ttft_p50", "first p50"),
        Cell("ttft_p99", "p99"),
        Cell("itl_p50", "between p50"),
        Cell("itl_p99", "p99"),
        Cell("e2e_p50", "end p50"),
        Cell("e2e_p99", "p99"),
    ],
)
INTERFERENCE = View(
    "What requests cost each other",
    "interference-*.csv",
    "The table shows requests by themselves and beside what the row names.",
    down="{model} {dtype}, {case}, {unit}",
    across="{provider}",
    cells=[Cell("alone", "alone"), Cell("beside", "beside"), Cell("ratio", "ratio", hundredths)],
)
SCHEDULING = View(
    "Scheduling",
    "scheduling-*.csv",
    "The table shows microseconds: from the end of a step to the next one, of a scheduler whose "
    "steps take no time, and of the thread that calls submit() and result().",
    down="{what}",
    across="",
    cells=[Cell("p50", "p50"), Cell("p99", "p99")],
)
SCALE = View(
    "Several GPUs",
    "scale-*.csv",
    "The table shows a corpus shared out over GPUs (seconds), steps of a model that is split over "
    "them (milliseconds), and sums of parts of so many bytes, as the steps need them "
    "(microseconds).",
    down="{part} {model} {what} {dtype}, {unit}",
    across="{provider} on {count}",
    cells=[Cell("p50", "p50")],
)
KV_CACHE = View(
    "Types of keys and values",
    "kv-cache-*.csv",
    "The table shows a step behind prompts of {prompt} tokens (milliseconds), and the pages for so "
    "many rows (MB).",
    down="{model} {shape}",
    across="{dtype}",
    cells=[Cell("step", "ms"), Cell("megabytes", "MB", whole)],
)
E4M3 = View(
    "Checkpoints in e4m3",
    "e4m3-*.csv",
    'The table shows a step with `dtype="int8"` (milliseconds), of a checkpoint in 16 bits and of '
    "one whose layers are stored in e4m3.",
    down="{shape}",
    across="{model}",
    cells=[Cell("p50", "")],
)
SPEED = (
    ENCODERS,
    PROGRAMS,
    SERVING,
    INTERFERENCE,
    SCALE,
    KV_CACHE,
    E4M3,
    replace(TRAINING, given={"passes": "both"}),
    UPDATES,
)
VIEWS = (
    ENCODERS,
    PROGRAMS,
    SERVING,
    INTERFERENCE,
    SCHEDULING,
    SCALE,
    KV_CACHE,
    TRAINING,
    UPDATES,
    QUALITY,
    CONTROLS,
)


@dataclass(frozen=True)
class Found:
    """What a view shows of a file. name: the file's."""

    name: str
    text: str
    machine: Machine
    table: Table


def read_view(view: View, folder: Path) -> list[Found]:
    """Of each file."""
    found = []
    for path in sorted(folder.glob(view.files)):
        lines = [line for line in read_lines(path) if view.given.items() <= line.items()]
        text = view.text.format(**named(lines[0]))
        found.append(Found(path.name, text, machine(lines[0]), table(view, lines)))
    return found


def machine(line: Line) -> Machine:
    threads = int(line.get("threads", 0))
    return Machine(line["device"], line["flags"], threads, line["commit"], line["date"], {})


def table(view: View, lines: Sequence[Line]) -> Table:
    """All columns of one cell side by side."""
    down = {id(line): view.down.format(**named(line)) for line in lines}
    across = {id(line): view.across.format(**named(line)) for line in lines}
    columns = [
        (where, cell)
        for cell in view.cells
        for where in dict.fromkeys(across.values())
        if not cell.across or where in cell.across
    ]
    rows = []
    for name in dict.fromkeys(down.values()):
        at = {across[id(line)]: line for line in lines if down[id(line)] == name}
        cells = [
            cell.written(float(at[where][cell.column])) if where in at else ""
            for where, cell in columns
        ]
        rows.append([name, *cells])
    return Table(["", *(f"{where} {cell.name}".strip() for where, cell in columns)], rows)


def named(line: Line) -> Line:
    """With engines and models called as people call them."""
    names: Line = {key: style(line[key]).name for key in ("engine", "provider") if key in line}
    if "model" in line:
        names["model"] = MODELS.get(line["model"], line["model"])
    if line.get("kv_cache", "auto") != "auto":
        names["dtype"] = f"{line['dtype']} with {line['kv_cache']} keys and values"
    return line | names
