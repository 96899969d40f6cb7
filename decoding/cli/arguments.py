"""Arguments that several commands have, and the model that they name."""

from __future__ import annotations

import argparse
from typing import Any

import decoding
from decoding.cli.messages import place

__all__ = [
    "COMPARE_EXTRA",
    "add_batch_arguments",
    "add_number_arguments",
    "add_language_arguments",
    "add_model_arguments",
    "add_source_arguments",
    "load_model",
    "place",
    "positive",
    "size",
]

MOST = 2**31 - 1  # the engine's numbers have 32 bits
COMPARE_EXTRA = "pip install .[compare]"  # installs what `decoding compare` needs


def positive(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    if int(text) > MOST:
        raise argparse.ArgumentTypeError(f"must be at most {MOST}, got {text!r}")
    return int(text)


def size(text: str) -> int:
    """Bytes: 4G is 4 * 2^30."""
    scale = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    number = text[:-1] if scale else text
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"must be bytes such as 500M or 4G, got {text!r}")
    return int(number) << (scale or 0)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and how it is found."""
    add = parser.add_argument
    add(
        "-m",
        "--model",
        required=True,
        help="a Hugging Face directory or a converted one, a name on the hub, or demo",
    )
    add("--tokenizer", metavar="DIR", help="a tokenizer's directory (default: the model's)")
    add("--download", action="store_true", help="fetch a model of the hub that is not here yet")
    add_trust_argument(parser)


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-paths",
        action="store_true",
        help="read files outside of the model's directory too, where links lead there",
    )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and how it computes."""
    add_source_arguments(parser)
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)"
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        help="float32 (fp32), bfloat16 (bf16), int8, on a GPU float16 (fp16, half) "
        "(default: by the stored type)",
    )
    add_number_arguments(parser)
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (default: one for each core)"
    )


def add_number_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-cache-dtype",
        default="auto",
        metavar="DTYPE",
        help="of keys and values: bfloat16 on the CPU, fp8 on a GPU (default: float32 on the CPU, "
        "on a GPU the model's type)",
    )
    parser.add_argument(
        "--activation-dtype",
        default="auto",
        metavar="DTYPE",
        help="int8: beside --dtype int8 encoders and prompts of 512 tokens and more multiply in "
        "int8, on a GPU of compute capability 9.0",
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
    add("--progress", action="store_true", help="show lines and tokens per second, the time left")
    add("--profile", action="store_true", help="say at the end how long each phase took")


def load_model(args: argparse.Namespace, **options: Any) -> decoding.Model:
    """The model of add_source_arguments; options: of load(), where args has none."""
    names = (
        "device",
        "dtype",
        "kv_cache_dtype",
        "activation_dtype",
        "threads",
        "tensor_parallel",
        "tokenizer",
        "download",
        "trust_paths",
    )
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return decoding.load(args.model, **given | options)
