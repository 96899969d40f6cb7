"""Compares engines on the same model and text: first their answers, then their times.

Every engine runs in a process of its own, in turns with the others. One that fails is a row that
says why. Needs the extra `compare`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decoding.cli.arguments import (
    COMPARE_EXTRA,
    add_language_arguments,
    add_trust_argument,
    positive,
)

DTYPES = ("float32", "float16", "bfloat16", "int8")


def amount(text: str) -> float:
    """Parses a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def needs(*libraries: str) -> Callable[[str], Path]:
    """The type of a path whose option needs these libraries: said at once, not after an hour."""

    def parse(text: str) -> Path:
        for library in libraries:
            if not find_spec(library):
                raise argparse.ArgumentTypeError(f"needs {library}: {COMPARE_EXTRA}")
        return Path(text)

    return parse


class Recorded(argparse.Action):
    """Stands in place of all options that say what is measured."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        # The namespace holds them, so that any that is set beside this one can be refused.
        namespace.measuring = [
            action for action in parser._actions if action.dest not in (self.dest, "html", "help")
        ]
        for action in namespace.measuring:
            action.required = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-m",
        "--model",
        type=Path,
        required=True,
        help="a Hugging Face directory, a name in the hub's cache, or demo",
    )
    add("--against", default="hf,ctranslate2", help="default: hf,ctranslate2")
    add("--text", type=Path, required=True, metavar="FILE", help="UTF-8, sources or prompts")
    add(
        "--references",
        type=needs("sacrebleu"),
        metavar="FILE",
        help="translations: adds BLEU and chrF",
    )
    add("--lines", type=positive, default=100, metavar="N", help="lines to read (default: 100)")
    add_language_arguments(parser)
    add_trust_argument(parser)
    grid = parser.add_argument_group("grid", "each combination is measured").add_argument
    for name, default, help in (
        ("batch", [1, 8], "sentences in a call (default: 1 8)"),
        ("beams", [1, 4], "1 is greedy search (default: 1 4)"),
        ("lengths", [64], "new tokens of each row (default: 64)"),
    ):
        names = [f"--{name}", *(["--num-beams", "--beam-size"] if name == "beams" else [])]
        grid(*names, dest=name, type=positive, nargs="+", default=default, metavar="N", help=help)
    grid("--dtype", nargs="+", choices=DTYPES, help="default: float32, on a GPU float16")
    grid("--device", nargs="+", choices=("cpu", "cuda"), help="default: a GPU where there is one")
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
    add(
        "--html", type=needs("matplotlib", "jinja2"), metavar="FILE", help="write a page with plots"
    )
    add(
        "--from",
        dest="recorded",
        action=Recorded,
        type=Path,
        metavar="FILE",
        help="show what --json has written, and write --html; nothing is measured",
    )


def run(args: argparse.Namespace) -> None:
    from decoding.cli.comparing import run

    run(args)
