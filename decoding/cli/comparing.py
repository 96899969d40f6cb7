"""The work of `decoding compare`, which needs the extra `compare`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm

from decoding.cli.arguments import COMPARE_EXTRA
from decoding.cli.messages import counted
from decoding.compare.comparison import Plan, compare
from decoding.compare.engines import ENGINES, Ours, installed
from decoding.compare.report.terminal import terminal
from decoding.compare.results import Comparison
from decoding.compare.task import Task
from decoding.compare.text import Text, read_text
from decoding.compare.worker import ResourceLimits
from decoding.engine.devices import check_torch, choose_device
from decoding.models.files.writing import replacing
from decoding.models.weights.converted import BLOCK
from decoding.sources import find_source
from decoding.text.tokenizers import OTHERS

NAMES = {"hf": "huggingface", "hf-static": "huggingface-static", **{name: name for name in ENGINES}}
DTYPES = {"cpu": "float32", "cuda": "float16"}  # where none is asked for


def engines(text: str) -> list[str]:
    """Names of engines with commas between them. Raises ValueError for an unknown one."""
    unknown = [name for name in text.split(",") if name not in NAMES]
    if unknown:
        known = ", ".join(name for name in NAMES if name != Ours.name)
        raise ValueError(f"--against: there is no engine {unknown[0]!r}, only {known}")
    return list(dict.fromkeys(NAMES[name] for name in text.split(",")))


def run(args: argparse.Namespace) -> None:
    if args.recorded is not None:
        return show(args)
    plan = make_plan(args)
    comparison: Comparison | None = None
    try:
        for comparison in shown(plan):
            if args.json:
                write(args.json, comparison.to_json())
    finally:  # also after Ctrl-C, with the findings so far
        if comparison is not None and comparison.checks:
            write_page(comparison, args.html)
            print(terminal(comparison))


def show(args: argparse.Namespace) -> None:
    """A comparison that was made before. Raises ValueError for options of another, and for a file
    that --json did not write."""
    for action in args.measuring:
        if getattr(args, action.dest) != action.default:
            name = next(name for name in action.option_strings if name.startswith("--"))
            raise ValueError(f"{name} measures anew: leave it or --from out")
    try:
        comparison = Comparison.from_json(args.recorded.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{args.recorded}: {error}") from error
    write_page(comparison, args.html)
    print(terminal(comparison))


def make_plan(args: argparse.Namespace) -> Plan:
    against = installed([name for name in engines(args.against) if name != Ours.name])
    if not against:
        raise ValueError(f"there is nothing to compare with: {COMPARE_EXTRA}")
    devices = args.device or [choose_device("auto").type]
    dtypes = args.dtype or list(dict.fromkeys(DTYPES[device] for device in devices))
    if "cuda" in devices:
        choose_device("cuda")  # or says what is missing
        check_torch()
    directory = find_source(args.model)
    assert isinstance(directory, Path)  # the model is no object in memory
    task = Task.read(directory, args.trust_paths)
    check_format(directory, task)
    task = task.between(args.src_lang, args.tgt_lang)
    plan = Plan(
        name=directory.resolve().name if args.model.exists() else str(args.model),
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


def check_format(directory: Path, task: Task) -> None:
    """Raises ValueError for a checkpoint that this library alone reads."""
    kind = task.model_config.get("model_type")
    if kind in OTHERS or (directory / BLOCK).exists():
        raise ValueError(
            f"{directory} is no Hugging Face directory: the other engines cannot read it, so there "
            "is nothing to compare with"
        )


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
        left_out = counted(text.left_out, "line")
        said = f"{left_out} left out, of fewer than {fits[0]} or more than {fits[-1]} tokens"
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

        write(path, comparison_page(comparison).html())


def write(path: Path, text: str) -> None:
    """A file that is whole at any time: comparisons take long, and others read what is there."""
    with replacing(path) as file:
        file.write(text.encode())
