"""The options of generate() as arguments of the program, with the same names and meanings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from decoding.generation.config import OPTIONS


def stopping(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text, text)


def numbers(text: str) -> list[int]:
    """Parses whole numbers with commas between them."""
    return [int(number) for number in text.split(",")]


Kind = Callable[[str], Any]
KINDS: dict[Kind, str] = {
    int: "a whole number",
    float: "a number",
    numbers: "whole numbers with commas between them",
    json.loads: "JSON",
}

# By title of a group of arguments: type, placeholder and help of each option.
SEARCH: dict[str, dict[str, tuple[Kind, str, str | None]]] = {
    "search: the default of each option is the model's own value": {
        "num_beams": (int, "N", "1: greedy search, or plain sampling"),
        "length_penalty": (float, "A", "score = sum / length^A"),
        "length_normalization": (str, "gnmt", "score = sum / ((5 + length) / 6)^A"),
        "early_stopping": (stopping, "true|false|never", None),
        "patience": (float, "P", "with early stopping: wait for num_beams * P finished rows"),
        "coverage_penalty": (float, "B", "for source words that get little attention"),
        "num_beam_groups": (int, "N", "diverse beam search; needs --diversity-penalty"),
        "diversity_penalty": (float, "D", "for tokens that earlier groups have chosen"),
        "diversity_rate": (float, "D", "for the lower ranks among a beam's continuations"),
        "penalty_alpha": (float, "A", "contrastive search, with --top-k"),
        "max_time": (float, "S", "seconds of a call of the model"),
    },
    "sampling": {
        "temperature": (float, "T", None),
        "top_k": (int, "K", None),
        "top_p": (float, "P", None),
        "top_h": (float, "H", None),
        "min_p": (float, "P", None),
        "typical_p": (float, "P", None),
        "epsilon_cutoff": (float, "E", None),
        "eta_cutoff": (float, "E", None),
        "seed": (int, "N", "makes sampling reproducible"),
    },
    "lengths": {
        "max_length": (int, "N", "tokens, with the prompt"),
        "max_new_tokens": (int, "N", "tokens, without the prompt"),
        "min_length": (int, "N", "tokens before the end, with the prompt"),
        "min_new_tokens": (int, "N", "tokens before the end, without the prompt"),
    },
    "what may be said": {
        "repetition_penalty": (float, "P", "above 1: less repetition"),
        "frequency_penalty": (float, "P", "less by P each time that a token has come"),
        "presence_penalty": (float, "P", "less by P for tokens that have come"),
        "no_repeat_ngram_size": (int, "N", "no N-gram twice"),
        "encoder_repetition_penalty": (float, "P", "above 1: tokens of the input come sooner"),
        "encoder_no_repeat_ngram_size": (int, "N", "no N-gram of the input"),
        "guidance_scale": (float, "G", "classifier-free guidance; 1: none"),
        "suppress_tokens": (numbers, "ID,ID", "never"),
        "begin_suppress_tokens": (numbers, "ID,ID", "never first"),
        "bad_words_ids": (json.loads, "JSON", "never: [[ids of a word], ...]"),
        "force_words_ids": (json.loads, "JSON", "always: [[ids of a word], ...]; needs beams"),
        "sequence_bias": (json.loads, "JSON", "added to scores: [[[ids], number], ...]"),
        "eos_token_id": (numbers, "ID,ID", "tokens that end a text"),
    },
}
OTHER_NAMES = {"num_beams": ("--beam-size", "--beams")}


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    for title, options in SEARCH.items():
        add = parser.add_argument_group(title).add_argument
        if title == "sampling":
            add("--do-sample", action="store_const", const=True, help="sample, do not search")
        for name, (kind, placeholder, help) in options.items():
            names = (f"--{name.replace('_', '-')}", *OTHER_NAMES.get(name, ()))
            add(*names, dest=name, type=checked(name, kind), metavar=placeholder, help=help)
    add(
        "--stop",
        "--stop-strings",
        dest="stop_strings",
        action="append",
        metavar="TEXT",
        help="end a text at TEXT; may be given again",
    )


def checked(name: str, kind: Kind) -> Kind:
    """The type of an option: its value, or an error that says what is allowed."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {KINDS[kind]}, got {text!r}") from None
        try:
            return OPTIONS[name]["check"](name, value)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def search_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that are set, for generate()."""
    names = ["do_sample", "stop_strings", *(name for group in SEARCH.values() for name in group)]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
