"""Arguments that several commands have."""

from __future__ import annotations

import argparse

import decoding


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="a Hugging Face directory")
    parser.add_argument("--device", default="auto", help="auto or cpu (default: auto)")
    parser.add_argument("--dtype", default="auto", help="auto or float32 (default: auto)")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: one a core")


def load_model(args: argparse.Namespace) -> decoding.Model:
    return decoding.load(args.model, device=args.device, dtype=args.dtype, threads=args.threads)
