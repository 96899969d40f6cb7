"""Makes a vector of each line, by the pooling of a sentence-transformers directory.

The output is numpy's .npy, float32 [lines, width] in the order of the lines; with --json a line
with "embedding" for each line. Both are written as vectors come; a pipe gets .npy at the end, as it
begins with the number of lines.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import decoding
from decoding.cli.arguments import add_batch_arguments, add_model_arguments, load_model
from decoding.cli.messages import say_speed
from decoding.cli.npy import write_rows
from decoding.cli.reading import Input, add_reading_arguments, open_input
from decoding.cli.records import Record, batches
from decoding.cli.writing import Sink, add_writing_arguments, json_line, opened

if TYPE_CHECKING:
    from torch import Tensor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_reading_arguments(parser, "a text", "text")
    add_writing_arguments(parser, formats=("npy", "json"))
    parser.add_argument(
        "--truncate", action="store_true", help="cut the end of a text that is too long"
    )
    add_batch_arguments(parser, "input")


def run(args: argparse.Namespace) -> None:
    records = open_input(args, "text")
    if args.output_format != "json" and args.output in (None, "-") and sys.stdout.isatty():
        raise ValueError("a terminal cannot show .npy: say --output FILE, or --json")
    model = load_model(args)
    if not model.is_encoder:
        raise ValueError("this model generates: embed needs an encoder, such as BERT")
    empty = model.embed([])  # raises what the directory lacks before the output is opened
    with opened(args.output, records.names) as sink:
        start, tokens = time.perf_counter(), list[int]()
        total = records.total() if args.progress else None
        found = shown(vectors(model, records, args, tokens), total, args.progress)
        if args.output_format == "json":
            lines = write_json(found, sink)
        else:
            lines = write_rows((vector.numpy() for _, vector in found), empty.shape[1], sink)
        if not args.quiet:
            say_speed(model, lines, sum(tokens), time.perf_counter() - start)


def vectors(
    model: decoding.Model, records: Input, args: argparse.Namespace, tokens: list[int]
) -> Iterator[tuple[Record, Tensor]]:
    """Each record with its vector, float32 [H]; appends to `tokens` how many each has."""

    def size(record: Record) -> int:
        tokens.append(len(model.tokenizer.encode(record.text)))
        return tokens[-1]

    most = 1 if args.line_buffered else args.batch_tokens
    for batch in batches(records, size, most, records.ready):
        yield from zip(batch, embedded(model, batch, args.truncate), strict=True)


def embedded(model: decoding.Model, batch: Sequence[Record], truncate: bool) -> Tensor:
    """float32 [batch, H]; an error names the line."""
    try:
        return model.embed([record.text for record in batch], truncate=truncate)
    except ValueError:
        for record in batch:
            try:
                model.embed(record.text)
            except ValueError as error:
                raise ValueError(f"{record.where}: {error}") from error
        raise


def shown(
    found: Iterable[tuple[Record, Tensor]], total: int | None, progress: bool
) -> Iterator[tuple[Record, Tensor]]:
    from tqdm import tqdm

    yield from tqdm(found, total=total, unit=" lines", file=sys.stderr, disable=not progress)


def write_json(found: Iterable[tuple[Record, Tensor]], sink: Sink) -> int:
    """Returns the number of lines."""
    lines = 0
    for record, vector in found:
        lines += 1
        numbers = [float(f"{number:.9g}") for number in vector.tolist()]  # what a float32 holds
        sink.write(json_line({**record.fields, "embedding": numbers}))
    return lines
