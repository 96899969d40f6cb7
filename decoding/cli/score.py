"""Scores text with a model: the log-probability of each line, and the perplexity.

Output lines are `log-probability ||| per token ||| tokens`, with natural logarithms. A TSV line of
an encoder-decoder is a source and its target, a JSON line has them as "source" and "target"; that
of a model with a decoder alone has "text".
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from decoding.cli.arguments import (
    add_batch_arguments,
    add_language_arguments,
    add_model_arguments,
    load_model,
)
from decoding.cli.corpus.arguments import add_job_arguments
from decoding.cli.ranks.arguments import add_tensor_parallel_argument
from decoding.cli.reading import Input, add_format_arguments, add_input_argument, check_apart
from decoding.cli.records import Record
from decoding.cli.report import Report
from decoding.cli.writing import Sink, add_writing_arguments, json_line, opened
from decoding.common.phases import Phases

if TYPE_CHECKING:
    from decoding.cli.scoring import Found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_tensor_parallel_argument(parser)
    add_language_arguments(parser)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="the same as --target")
    add("--source", metavar="FILE", help="the sources of --target, for encoder-decoders")
    add("--target", metavar="FILE", help="a sentence in each line (default: standard input)")
    add_input_argument(parser)
    add_format_arguments(parser)
    add_writing_arguments(parser)
    add("--column", dest="field", metavar="NAME", help="of a job's targets, in tables and JSON")
    add("--source-column", metavar="NAME", help="of a job's sources (default: source; TSV: 1)")
    add_batch_arguments(parser, "source and target")
    add_job_arguments(parser)


def run_job(args: argparse.Namespace) -> int:
    from decoding.cli.corpus.running import run_job

    names = ("source_column", "src_lang", "tgt_lang")
    return run_job(args, "score", {name: getattr(args, name) for name in names})


def run(args: argparse.Namespace) -> None:
    from decoding.cli.scoring import scores

    with contextlib.ExitStack() as stack:
        names = [*([args.target] if args.target else []), *args.files, *args.input]
        tsv = args.input_format == "tsv"
        source = Input(args, [args.source], "1" if tsv else "source") if args.source else None
        target = Input(args, names, "1" if tsv else "target", "target")
        if source is not None:
            check_apart(source, target)
        model = load_model(args)
        if model.spec.encoder is None and source is not None:
            raise ValueError("this model has a decoder alone: leave --source out")
        if model.spec.encoder is None:
            target.field, target.key = "1" if tsv else "text", "text"
        elif source is None:
            target.field = "2" if tsv else "target"
        # Opened last: what was wrong so far must not cost an older output.
        sources = source.names if source is not None else []
        sink = stack.enter_context(opened(args.output, [*target.names, *sources]))
        phases, form = Phases(), args.output_format or args.input_format
        pending: deque[Record] = deque()
        total = target.total() if args.progress else None
        with Report(model, args, phases, total) as report:
            found = stack.enter_context(
                closing(scores(model, source, target, pending, args, phases))
            )
            perplexity = write_scores(found, pending, sink, form, report)
        if not args.quiet:
            print(perplexity, file=sys.stderr)
        report.say()


def write_scores(
    groups: Iterable[Sequence[Found]],
    pending: deque[Record],
    sink: Sink,
    form: str,
    report: Report,
) -> str:
    """Writes the scores of pending records; returns what they say together."""
    from decoding.scoring import perplexity

    logprob, tokens = 0.0, 0
    for found in groups:
        with report.phases("writing"):
            sink.write("".join([written(pending.popleft(), each, form) for each in found]))
            logprob += sum(each.logprob for each in found)
            tokens += sum(each.tokens for each in found)
            report.add(len(found), sum(each.tokens for each in found))
    return f"perplexity {perplexity(logprob, tokens):.4f}, log-probability {logprob:.4f}"


def written(record: Record, found: Found, form: str) -> str:
    """A line of the output."""
    numbers = {"logprob": found.logprob, "per_token": found.per_token}
    if form == "json":
        rounded = {name: round(number, 6) for name, number in numbers.items()}
        return json_line({**record.fields, **rounded, "tokens": found.tokens})
    cells = [*(f"{number:.4f}" for number in numbers.values()), str(found.tokens)]
    if form == "tsv":
        return "\t".join([*record.columns, *cells]) + "\n"
    return " ||| ".join(cells) + "\n"
