"""Compares engines on the same model and text: first their answers, then their times.

Every engine runs in a process of its own, in turns with the others. One that fails is a row that
says why. Needs the extra `compare`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from tqdm import tqdm

from decoding.cli.arguments import add_language_arguments, positive
from decoding.compare.bounds import WIDTHS
from decoding.compare.comparison import Plan, compare
from decoding.compare.engines import ENGINES, Ours, installed
from decoding.compare.report.terminal import terminal
from decoding.compare.results import Comparison
from decoding.compare.task import Task
from decoding.compare.text import Text, read_text
from decoding.compare.worker import ResourceLimits
from decoding.engine.devices import choose_device

INSTALL = "pip install .[compare]"
NAMES = {"hf": "huggingface", "hf-static": "huggingface-static", **{name: name for name in ENGINES}}
DTYPES = {"cpu": "float32", "cuda": "float16"}  # where none is asked for


def engines(text: str) -> list[str]:
    """Parses names of engines with commas between them."""
    unknown = [name for name in text.split(",") if name not in NAMES]
    if unknown:
        known = ", ".join(name for name in NAMES if name != Ours.name)
        raise argparse.ArgumentTypeError(f"no engine {unknown[0]!r}, only {known}")
    return list(dict.fromkeys(NAMES[name] for name in text.split(",")))


def amount(text: str) -> float:
    """Parses a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-m", "--model", type=Path, required=True, metavar="DIR", help="a Hugging Face directory")
    add("--against", type=engines, default="hf,ctranslate2", help="default: hf,ctranslate2")
    add("--text", type=Path, required=True, metavar="FILE", help="UTF-8, sources or prompts")
    add("--references", type=Path, metavar="FILE", help="translations: adds BLEU and chrF")
    add("--lines", type=positive, default=100, metavar="N", help="lines to read (default: 100)")
    add_language_arguments(parser)
    grid = parser.add_argument_group("grid", "each combination is measured").add_argument
    for name, default, help in (
        ("batch", [1, 8], "sentences in a call (default: 1 8)"),
        ("beams", [1, 4], "1 is greedy search (default: 1 4)"),
        ("lengths", [64], "new tokens of each row (default: 64)"),
    ):
        names = [f"--{name}", *(["--num-beams", "--beam-size"] if name == "beams" else [])]
        grid(*names, dest=name, type=positive, nargs="+", default=default, metavar="N", help=help)
    grid("--dtype", nargs="+", choices=WIDTHS, help="default: float32, on a GPU float16")
    grid("--device", nargs="+", choices=DTYPES, help="default: a GPU where there is one")
    how = parser.add_argument_group("measuring").add_argument
    how("--threads", type=positive, metavar="N", help="CPU threads of each engine")
    how("--rounds", type=positive, default=5, metavar="N", help="measurements (default: 5)")
    how(
        "--tokenisation",
        choices=["in", "out"],
        default="out",
        help="in: each engine's own tokenizer is part of its times (default: out)",
    )
    how("--memory-limit", type=amount, metavar="GB", help="of each engine's process")
    how(
        "--time-limit",
        type=amount,
        default=600.0,
        metavar="S",
        help="seconds for loading, and for each call (default: 600)",
    )
    add("--json", type=Path, metavar="FILE", help="write all numbers, after each finding")
    add("--html", type=Path, metavar="FILE", help="write a page with plots")


def run(args: argparse.Namespace) -> None:
    check_installed(args)
    plan = make_plan(args)
    comparison: Comparison | None = None
    try:
        for comparison in shown(plan):
            if args.json:
                args.json.write_text(comparison.to_json(), encoding="utf-8")
    finally:  # also after Ctrl-C, with the findings so far
        if comparison is not None and comparison.checks:
            write_page(comparison, args.html)
            print(terminal(comparison))


def check_installed(args: argparse.Namespace) -> None:
    """Raises for missing packages at once, not after an hour."""
    needed = [(args.references, "sacrebleu"), (args.html, "matplotlib"), (args.html, "jinja2")]
    for option, library in needed:
        if option and not find_spec(library):
            name = "--references" if option is args.references else "--html"
            raise ValueError(f"{name} needs {library}: {INSTALL}")


def make_plan(args: argparse.Namespace) -> Plan:
    against = installed([name for name in args.against if name != Ours.name])
    if not against:
        raise ValueError(f"there is nothing to compare with: {INSTALL}")
    devices = args.device or [choose_device("auto").type]
    dtypes = args.dtype or list(dict.fromkeys(DTYPES[device] for device in devices))
    if "cuda" in devices:
        choose_device("cuda")  # or says what is missing
    task = Task.read(args.model).between(args.src_lang, args.tgt_lang)
    plan = Plan(
        name=args.model.resolve().name,
        task=task,
        text=lines_that_fit(args, task),
        engines=[*against, Ours],
        batch=sorted(set(args.batch)),
        beams=sorted(set(args.beams)),
        lengths=sorted(set(args.lengths)),
        dtypes=dtypes,
        devices=devices,
        threads=args.threads or torch.get_num_threads(),
        tokenisation=args.tokenisation,
        rounds=args.rounds,
        limits=ResourceLimits(args.memory_limit and 1e9 * args.memory_limit, args.time_limit),
    )
    warn_of_types(plan)
    return plan


def lines_that_fit(args: argparse.Namespace, task: Task) -> Text:
    """Raises ValueError where the new tokens alone are too many for the model."""
    new, positions = max(args.lengths), task.spec.decoder.positions
    if new > positions - 2:
        raise ValueError(f"--lengths {new}: this model has {positions} positions")
    encoder = task.spec.encoder
    # CTranslate2 counts the rest of a batch's prompts as generated where one is a single token.
    fits = range(2, positions - new + 1) if encoder is None else range(1, encoder.positions + 1)
    text = read_text(args.text, args.references, task.load_tokenizer(), fits, args.lines)
    if text.left_out:
        said = f"{text.left_out} lines are left out: not of {fits[0]} to {fits[-1]} tokens"
        warnings.warn(said, stacklevel=2)
    return text


def warn_of_types(plan: Plan) -> None:
    """Warns of types that an engine does not compute in. Raises ValueError where none is left."""
    for device in plan.devices:
        for engine in plan.engines:
            absent = [dtype for dtype in plan.dtypes if dtype not in engine.dtypes[device]]
            if absent:
                said = f"{engine.name} does not compute in {' or '.join(absent)} on {device}"
                warnings.warn(said, stacklevel=2)
    if not any(plan.configs(device) for device in plan.devices):
        raise ValueError("no engine computes in such a type there")


def shown(plan: Plan) -> Iterator[Comparison]:
    """The comparison as it grows, with a progress bar on a terminal."""
    with tqdm(total=plan.findings, file=sys.stderr, disable=None, unit=" findings") as progress:
        for comparison in compare(plan):
            progress.update()
            yield comparison


def write_page(comparison: Comparison, path: Path | None) -> None:
    if path is not None:
        from decoding.compare.report.sections import comparison_page  # needs matplotlib

        path.write_text(comparison_page(comparison).html(), encoding="utf-8")
