"""Reads a command's words: `_` for `-` in options, and the nearest name for a misspelt one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import NoReturn

from decoding.generation.option_names import OTHER_NAMES, nearest, plain

# What arguments of the program are called by other programs, and by generate(), beside the options
# of generation.
OTHER_ARGUMENTS = {
    "alignment": "--alignments",
    "bf16": "--dtype",
    "buffer_size": "--line-buffered",
    "compute_type": "--dtype",
    "cpu_threads": "--threads",
    "decoder_input_ids": "--target-prefix",
    "devices": "--device",
    "file": "--input",
    "fp16": "--dtype",
    "gpu": "--device",
    "half": "--dtype",
    "int8": "--dtype",
    "max_batch_size": "--batch-tokens",
    "max_input_length": "--truncate",
    "max_length_crop": "--truncate",
    "maxi_batch": "--batch-tokens",
    "mini_batch": "--batch-tokens",
    "num_return_sequences": "--n-best",
    "num_threads": "--threads",
    "output_scores": "--scores",
    "precision": "--dtype",
    "prefix": "--target-prefix",
    "print_alignment": "--alignments",
    "source_lang": "--src-lang",
    "src": "--input",
    "target_lang": "--tgt-lang",
    "tensor_parallel_size": "--tensor-parallel",
    "truncation": "--truncate",
}
# Options of other programs that a process has no place for, which uses one device: a job has.
SEVERAL_DEVICES = (
    "data_parallel_size",
    "device_index",
    "gpus",
    "inter_threads",
    "num_devices",
    "num_gpus",
    "num_workers",
)
ONE_DEVICE = (
    ": a process uses one GPU, or the CPU's cores; start one for each GPU with a part of the input "
    "and --device cuda:0, cuda:1, ..., see docs/how-to/several-gpus.md"
)
NOT_SPLIT = (
    ": `decoding translate`, `generate` and `score` split a model over processes; a server decides "
    "by its clock which request runs when, and processes that share a model would part"
)


JOBS = (
    ": a job over files has a process for each of --devices, or --workers on the CPU, see "
    "docs/how-to/corpus.md"
)


class Parser(argparse.ArgumentParser):
    """The parser of one command. Options may be written with `_`, but not shortened: a shortened
    one could mean another option in the next version."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(prog=name, description=description, allow_abbrev=False)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Files may stand before, between and behind options. Ends the program with status 2 and
        one line for wrong arguments."""
        words = list(with_hyphens(words))
        self._check_names(words)  # before it is said what else is missing
        args, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.error(f"there is no argument {unknown[0]}")
        return args

    def _check_names(self, words: Sequence[str]) -> None:
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if is_long(name) and name not in self._option_string_actions:
                self.error(f"there is no argument {name}{self._near(name)}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _near(self, name: str) -> str:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        if plain(name) in SEVERAL_DEVICES:
            return JOBS if "--devices" in known else ONE_DEVICE
        if plain(name) in ("tensor_parallel", "tensor_parallel_size"):
            if "--tensor-parallel" not in known:
                return NOT_SPLIT
        ours = OTHER_NAMES.get(plain(name), plain(name))
        meant = OTHER_ARGUMENTS.get(ours)
        return did_you_mean(name, known) if meant not in known else f"; did you mean {meant}?"


def with_hyphens(words: Iterable[str]) -> Iterable[str]:
    """The words with `-` for each `_` in the names of long options, up to a `--`."""
    names = True
    for word in words:
        names = names and word != "--"
        name, sign, value = word.partition("=")
        yield name.replace("_", "-") + sign + value if names and is_long(name) else word


def is_long(name: str) -> bool:
    """Whether it is a long option's, as argparse has it: a text with a space is a value."""
    return name.startswith("--") and " " not in name


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty where none is near."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""
