"""Arguments that several commands have."""

from __future__ import annotations

import argparse

import torch

import decoding


def positive(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="a Hugging Face directory, or a converted one"
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)"
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        help="float32, bfloat16, float16 on a GPU, int8 on a CPU (default: by the stored type)",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (default: one for each core)"
    )


def add_language_arguments(parser: argparse.ArgumentParser) -> None:
    for name, side in (("--src-lang", "source"), ("--tgt-lang", "target")):
        parser.add_argument(name, metavar="CODE", help=f"{side} language of a multilingual model")


def place(model: decoding.Model) -> str:
    """The device or threads of a model, for messages."""
    if model.device.type == "cpu":
        return f"{model.threads} threads"
    return (
        f"{torch.cuda.get_device_name(model.device)} in {str(model.dtype).removeprefix('torch.')}"
    )


def load_model(args: argparse.Namespace) -> decoding.Model:
    return decoding.load(args.model, device=args.device, dtype=args.dtype, threads=args.threads)
