"""The argument of commands whose model several ranks may share out, and what each of them is."""

from __future__ import annotations

import argparse
import os
import stat
import sys

from decoding.cli.arguments import positive
from decoding.cli.corpus.arguments import inputs_of
from decoding.common.starting import ENDING, release_signals


def add_tensor_parallel_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tensor-parallel",
        type=positive,
        default=1,
        metavar="N",
        help="split the model over N processes, each on a GPU or on its part of the cores",
    )


def is_split(args: argparse.Namespace) -> bool:
    return getattr(args, "tensor_parallel", 1) > 1


def is_rank() -> bool:
    """Whether torchrun or our launcher has started this process."""
    return "WORLD_SIZE" in os.environ


def is_follower() -> bool:
    """Whether it is one that neither reads requests nor writes answers."""
    return os.environ.get("RANK", "0") != "0"


def become_rank(args: argparse.Namespace) -> None:
    """Rank 0 alone writes. Raises ValueError where the ranks would not read the same."""
    release_signals(*ENDING)  # which our launcher has held
    if reads_stdin(args) and not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        raise ValueError(
            "every rank reads the whole input: name files, or let `decoding` start the ranks itself"
        )
    if is_follower():
        args.output, args.quiet, args.progress, args.profile = os.devnull, True, False, False


def check_split(args: argparse.Namespace, job: bool) -> None:
    """Raises ValueError for what a split model is not for."""
    if job:
        raise ValueError(
            "--tensor-parallel splits one model, and the processes of a job have one each: leave "
            "the options of jobs out, and give it text as lines"
        )
    if getattr(args, "line_buffered", False):
        raise ValueError(
            "--line-buffered answers while it reads, and with --tensor-parallel all of the input "
            "is read first: leave one of them out"
        )
    for name in inputs_of(args) if reads_input(args) else ():
        if name != "-" and os.path.exists(name) and not os.path.isfile(name):
            raise ValueError(f"every rank reads {name}, which can be read once: pipe it in instead")


def reads_input(args: argparse.Namespace) -> bool:
    """Whether a command has input, which a server has not."""
    return hasattr(args, "input")


def reads_stdin(args: argparse.Namespace) -> bool:
    if getattr(args, "prompt", None) or not reads_input(args):
        return False
    names = inputs_of(args)
    return not names or "-" in names
