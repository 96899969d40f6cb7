"""Translates text line by line, from standard input or files to standard output.

Lines are translated in batches of about equal lengths, and written in their order. Where no more
input waits, as in a pipe whose writer waits for an answer, the lines read so far are translated at
once.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import decoding
from decoding.cli.arguments import (
    add_batch_arguments,
    add_language_arguments,
    add_model_arguments,
    load_model,
)
from decoding.cli.corpus.arguments import add_job_arguments
from decoding.cli.ranks.arguments import add_tensor_parallel_argument
from decoding.cli.reading import Input, add_reading_arguments, open_input
from decoding.cli.records import Record, kept
from decoding.cli.report import Report
from decoding.cli.results import Layout, add_result_arguments, write_results
from decoding.cli.search import add_search_arguments, search_options
from decoding.cli.writing import add_writing_arguments, opened

if TYPE_CHECKING:
    from decoding.text.hypotheses import Hypothesis
    from decoding.text.prefixes import Line
    from decoding.text.translate import Translator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_tensor_parallel_argument(parser)
    add_language_arguments(parser)
    add_reading_arguments(parser, "a sentence", "text")
    add_writing_arguments(parser)
    add_result_arguments(parser)
    add = parser.add_argument
    add(
        "--alignments",
        action="store_true",
        help="append ` ||| i-j ...`: target word j is aligned to source word i, from 0",
    )
    add("--target-prefix", default="", metavar="TEXT", help="each translation begins with TEXT")
    add(
        "--truncate",
        action="store_true",
        help="cut the end of a line that is too long, instead of translating it in parts",
    )
    add(
        "--shortlist",
        metavar="FILE",
        help="restricts the vocabulary, see `decoding shortlist`; CPU",
    )
    add_batch_arguments(parser, "source")
    add_job_arguments(parser)
    add_search_arguments(parser)


def run_job(args: argparse.Namespace) -> int:
    from decoding.cli.corpus.running import kind_of, run_job

    own = {"own_options": kind_of(args) == "json", "target_prefix": args.target_prefix}
    return run_job(args, "translate", {**translator_options(args), **own})


def run(args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        records = open_input(args, "text")
        model = load_model(args)
        translator = make_translator(model, args)
        # Opened last: what was wrong so far must not cost an older output.
        sink = stack.enter_context(opened(args.output, records.names))
        pending: deque[Record] = deque()
        total = records.total() if args.progress else None
        with Report(model, args, translator.phases, total) as report:
            found = stack.enter_context(closing(translations(translator, records, pending, args)))
            write_results(found, pending, sink, Layout.of(args, "translation"), report)
        report.say()


def make_translator(model: decoding.Model, args: argparse.Namespace) -> Translator:
    from decoding.text.translate import Translator

    return Translator(model, **translator_options(args))


def translator_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "n_best": args.n_best if args.scores or args.n_best > 1 else None,
        "batch_tokens": args.batch_tokens,
        "alignments": args.alignments,
        "src_lang": args.src_lang,
        "tgt_lang": args.tgt_lang,
        "shortlist": args.shortlist,
        "unique": args.unique,
        "truncate": args.truncate,
        **search_options(args),
    }


def translations(
    translator: Translator, records: Input, pending: deque[Record], args: argparse.Namespace
) -> Generator[list[list[Hypothesis]], None, None]:
    positions = translator.model.spec.decoder.positions
    lines = lines_of(kept(records, pending), args, positions)
    # What is sampled depends on how the lines are batched, and must not depend on who writes them.
    fixed = translator.config.do_sample and translator.config.seed is not None
    ready = (lambda: True) if fixed else records.ready
    if args.line_buffered:
        return translator.groups(lines, apart=False, ahead=0, ready=ready)
    return translator.groups(lines, apart=True, ready=ready)


def lines_of(
    records: Iterable[list[Record]], args: argparse.Namespace, positions: int
) -> Iterator[list[Line]]:
    """A JSON line may have a prefix of its target and a limit of its own. positions: of the
    decoder."""
    from decoding.text.prefixes import Line
    from decoding.text.prompt_batch import own_option

    def own(record: Record) -> Line:
        prefix = record.fields.get("target_prefix", args.target_prefix)
        try:
            if not isinstance(prefix, str):
                raise ValueError(f"'target_prefix' must be a string, got {prefix!r}")
            most = own_option(record.fields, "max_new_tokens")
            if most is not None and most > positions:
                raise ValueError(f"max_new_tokens={most}: the model has {positions} positions")
        except ValueError as error:
            raise ValueError(f"{record.where}: {error}") from None
        return Line(record.text, prefix, most)

    def usual(record: Record) -> Line:
        return Line(record.text, args.target_prefix)

    made = own if args.input_format == "json" else usual
    return (list(map(made, read)) for read in records)
