"""Runs a command as a job, and says what has come of it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from decoding.cli.corpus.arguments import inputs_of
from decoding.cli.messages import counted
from decoding.corpus import Done, JobError, Task, run
from decoding.corpus.formats.layout import file_type

FAILED_ROWS = 3  # the exit code
LOADING = (
    "dtype",
    "kv_cache_dtype",
    "activation_dtype",
    "threads",
    "tokenizer",
    "download",
    "trust_paths",
)
# What a stream has, and a job has no place for.
STREAMS = {
    "line_buffered": "--line-buffered answers a stream line by line",
    "profile": "--profile is for one process",
    "stream": "--stream writes one answer as it comes",
    "prompt": "--prompt and files do not go together",
    "source": "a job scores pairs in one file, such as TSV with source and target",
}


def run_job(args: argparse.Namespace, command: str, options: dict[str, Any]) -> int:
    """options: of the task, where they are set. Returns the exit code."""
    check(args)
    load = {name: getattr(args, name) for name in LOADING}
    task = Task(
        command,
        args.model,
        args.field,
        {name: value for name, value in load.items() if value not in (None, False, "auto")},
        {name: value for name, value in options.items() if value is not None and value != ""},
    )
    try:
        done = run(
            task,
            inputs_of(args),
            args.output,
            input_format=args.input_format,
            output_format=args.output_format,
            encoding=args.encoding,
            errors=args.errors,
            shard_lines=args.shard_lines or 10_000,
            resume=args.resume,
            devices=devices(args),
            workers=args.workers or 1,
            progress=args.progress,
        )
    except JobError as error:
        raise ValueError(str(error)) from None
    if not args.quiet:
        say(done)
    return FAILED_ROWS if done.errors else 0


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for arguments that are no job's."""
    for name, reason in STREAMS.items():
        if getattr(args, name, None):
            raise ValueError(f"{reason}, and this is a job over files: leave one of them out")
    if args.output in (None, "-"):
        raise ValueError("a job writes files: say --output FILE or DIR")
    if "-" in inputs_of(args) or not inputs_of(args):
        raise ValueError("a job reads files, and not standard input: name them with --input")
    if args.output_format == "npy":
        raise ValueError("a job writes vectors as json or parquet: leave --output-format npy out")


def kind_of(args: argparse.Namespace) -> str | None:
    """The format of the inputs, where there are any."""
    kinds = [file_type(name, args.input_format).kind for name in inputs_of(args)]
    return kinds[0] if kinds else None


def devices(args: argparse.Namespace) -> list[str] | str:
    if args.devices is None:
        return [str(args.device)]
    if args.workers:
        raise ValueError("each of --devices has one worker: leave --workers out")
    numbers = args.devices.split(",")
    if args.devices != "all" and not all(number.isdecimal() for number in numbers):
        raise ValueError(f"--devices must be all or numbers such as 0,1,3, got {args.devices!r}")
    return "all" if args.devices == "all" else [f"cuda:{int(number)}" for number in numbers]


def say(done: Done) -> None:
    speed = f"{done.computed / done.seconds:.1f} rows/s" if done.computed else "done before"
    outputs = [str(path) for path in done.outputs]
    more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
    print(
        f"{counted(done.rows, 'row')}, {counted(done.tokens, 'token')} in {outputs[0]}{more}, "
        f"{done.computed} of them in {done.seconds:.1f} s: {speed}",
        file=sys.stderr,
    )
    if done.errors:
        print(
            f"{counted(done.errors, 'row')} failed: {done.folder}/errors.jsonl says why",
            file=sys.stderr,
        )
    for shard in done.set_aside:
        print(f"set aside: {shard}; --resume tries it again", file=sys.stderr)
