"""Arguments that several commands have, and the model that they name."""

from __future__ import annotations

import argparse

import decoding
from decoding.cli.messages import place

__all__ = ["add_language_arguments", "add_model_arguments", "load_model", "place", "positive"]


def positive(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        required=True,
        metavar="DIR",
        help="a Hugging Face directory, or a converted one",
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)"
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        help="float32 (fp32), bfloat16 (bf16), on a GPU float16 (fp16, half), on a CPU int8 "
        "(default: by the stored type)",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (default: one for each core)"
    )


def add_language_arguments(parser: argparse.ArgumentParser) -> None:
    for name, side in (("--src-lang", "source"), ("--tgt-lang", "target")):
        parser.add_argument(name, metavar="CODE", help=f"{side} language of a multilingual model")


def add_batch_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """what: the tokens that are counted."""
    add = parser.add_argument_group("batches").add_argument
    add(
        "--batch-tokens",
        type=positive,
        default=4096,
        metavar="N",
        help=f"{what} tokens in one call of the model (default: 4096)",
    )
    add(
        "--line-buffered",
        action="store_true",
        help="answer each line before the next is read, instead of all that are there",
    )
    add("--progress", action="store_true", help="show lines per second and the time left")


def load_model(args: argparse.Namespace) -> decoding.Model:
    return decoding.load(args.model, device=args.device, dtype=args.dtype, threads=args.threads)
