"""Converts a checkpoint for the CPU, to a directory that loads at once and shares its memory.

That directory takes the place of the checkpoint's in every other command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from decoding.cli.arguments import add_source_arguments, load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_source_arguments(parser)
    add("--dtype", required=True, help="float32, bfloat16 or int8")
    add("-o", "--output", required=True, metavar="DIR", help="the directory to write")


def run(args: argparse.Namespace) -> None:
    from decoding.engine.memory import readable
    from decoding.models.weights.converted import BLOCK

    output = Path(args.output)
    model = load_model(args, device="cpu")
    model.save(output)
    size = readable((output / BLOCK).stat().st_size)
    print(f"{output}: {size} of weights in {args.dtype}", file=sys.stderr)
    for name in model.unquantized:
        print(f"in bfloat16, for which int8 is too coarse: {name}", file=sys.stderr)
