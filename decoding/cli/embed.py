"""Makes a vector of each line, by the pooling of a sentence-transformers directory.

The output is numpy's .npy, float32 [lines, width] in the order of the lines; with --json a line
with "embedding" for each line. Both are written as vectors come; a pipe gets .npy at the end, as it
begins with the number of lines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from decoding.cli.arguments import add_batch_arguments, add_model_arguments, load_model
from decoding.cli.corpus.arguments import add_job_arguments
from decoding.cli.npy import write_rows
from decoding.cli.reading import add_reading_arguments, open_input
from decoding.cli.records import Record
from decoding.cli.report import Report
from decoding.cli.writing import Sink, add_writing_arguments, json_line, opened
from decoding.common.phases import Phases

if TYPE_CHECKING:
    from decoding.common.arrays import Array


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_reading_arguments(parser, "a text", "text")
    add_writing_arguments(parser, formats=("npy", "json"))
    parser.add_argument(
        "--truncate", action="store_true", help="cut the end of a text that is too long"
    )
    add_batch_arguments(parser, "input")
    add_job_arguments(parser)


def run_job(args: argparse.Namespace) -> int:
    from decoding.cli.corpus.running import run_job

    return run_job(args, "embed", {"truncate": args.truncate})


def run(args: argparse.Namespace) -> None:
    from decoding.cli.embedding import vectors

    records = open_input(args, "text")
    if args.output_format != "json" and args.output in (None, "-") and sys.stdout.isatty():
        raise ValueError("a terminal cannot show .npy: say --output FILE, or --json")
    model = load_model(args)
    if not model.is_encoder:
        raise ValueError("this model generates: embed needs an encoder, such as BERT")
    embedder = model.embedder  # raises what the directory lacks before the output is opened
    with opened(args.output, records.names) as sink:
        phases, total = Phases(), records.total() if args.progress else None
        with Report(model, args, phases, total) as report:
            with closing(vectors(model, embedder, records, args, phases)) as groups:
                found = written(groups, report)
                if args.output_format == "json":
                    write_json(found, sink)
                else:
                    write_rows((vector for _, vector in found), embedder.width, sink)
        report.say()


def written(
    groups: Iterable[tuple[list[Record], Array, int]], report: Report
) -> Iterator[tuple[Record, Array]]:
    """Each record with its vector, float32 [H]; reports those that have been taken."""
    for records, found, tokens in groups:
        with report.phases("writing"):
            yield from zip(records, found, strict=True)
            report.add(len(records), tokens)


def write_json(found: Iterable[tuple[Record, Array]], sink: Sink) -> None:
    for record, vector in found:
        numbers = [float(f"{number:.9g}") for number in vector.tolist()]  # what a float32 holds
        sink.write(json_line({**record.fields, "embedding": numbers}))
