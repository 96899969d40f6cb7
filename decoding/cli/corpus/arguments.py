"""The arguments of jobs, and whether a command is one."""

from __future__ import annotations

import argparse
import glob
import os
from pathlib import Path

from decoding.cli.arguments import positive

# What a stream of lines is not: files and formats that only a job reads and writes.
FILES = (".gz", ".zst", ".csv", ".parquet")
FORMATS = ("csv", "parquet")


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    title = "jobs: these, a directory as output, patterns, and .gz, .zst, .csv, .parquet files"
    add = parser.add_argument_group(title).add_argument
    add(
        "--shard-lines",
        type=positive,
        metavar="N",
        help="rows that a worker has in hand, and may have to do again (default: 10000)",
    )
    add("--resume", action="store_true", help="go on with the job of this output, if there is one")
    add("--devices", metavar="N,N", help="GPUs, such as all or 0,1,3: one process on each")
    add("--workers", type=positive, metavar="N", help="processes on the CPU or --device")


def inputs_of(args: argparse.Namespace) -> list[str]:
    target = [args.target] if getattr(args, "target", None) else []
    return [*target, *args.files, *args.input]


def is_job(args: argparse.Namespace) -> bool:
    """Whether a command's arguments ask for a job."""
    if not hasattr(args, "shard_lines"):
        return False
    if args.shard_lines or args.resume or args.devices or args.workers:
        return True
    output = args.output or ""
    return (
        args.input_format in FORMATS
        or args.output_format in FORMATS
        or output.endswith("/")
        or os.path.isdir(output)
        or any(needs_job(name) for name in [*inputs_of(args), output])
    )


def needs_job(name: str) -> bool:
    is_pattern = glob.has_magic(name) and not os.path.exists(name)
    return is_pattern or Path(name).suffix.lower() in FILES
