"""Scores text with a model: the log-probability of each line, and the perplexity.

Output lines are `log-probability ||| per token ||| tokens`, with natural logarithms. A TSV line of
an encoder-decoder is a source and its target, a JSON line has them as "source" and "target"; that
of a model with a decoder alone has "text".
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import decoding
from decoding.cli.arguments import (
    add_batch_arguments,
    add_language_arguments,
    add_model_arguments,
    load_model,
)
from decoding.cli.messages import counted, say_speed
from decoding.cli.reading import Input, add_format_arguments
from decoding.cli.records import Record, batches, kept
from decoding.cli.writing import add_writing_arguments, json_line, opened

if TYPE_CHECKING:
    from decoding.text.tokenizers import Tokenizer


class Line(NamedTuple):
    """A line's ids: the encoder's input, None without one, and the ids that are scored."""

    source: list[int] | None
    target: list[int]


class Found(NamedTuple):
    logprob: float
    tokens: int  # EOS included, where the model has it

    @property
    def per_token(self) -> float:
        return self.logprob / max(1, self.tokens)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_language_arguments(parser)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="the same as --target")
    add("--source", metavar="FILE", help="the sources of --target, for encoder-decoders")
    add("--target", metavar="FILE", help="a sentence in each line (default: standard input)")
    add_format_arguments(parser)
    add_writing_arguments(parser)
    add_batch_arguments(parser, "source and target")


def run(args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        names = [*([args.target] if args.target else []), *args.files]
        tsv = args.input_format == "tsv"
        source = Input(args, [args.source], "1" if tsv else "source") if args.source else None
        target = Input(args, names, "1" if tsv else "target", "target")
        model = load_model(args)
        if model.spec.encoder is None and source is not None:
            raise ValueError("this model has a decoder alone: leave --source out")
        if model.spec.encoder is None:
            target.field, target.key = "1" if tsv else "text", "text"
        elif source is None:
            target.field = "2" if tsv else "target"
        pending: deque[Record] = deque()
        lines = encoded(model, source, kept(target, pending), args)
        # Opened last: what was wrong so far must not cost an older output.
        sources = [args.source] if args.source else []
        sink = stack.enter_context(opened(args.output, [*names, *sources]))
        start = time.perf_counter()
        total, count = Found(0.0, 0), 0
        form = args.output_format or args.input_format
        batch_tokens = 1 if args.line_buffered else args.batch_tokens
        for found in score_lines(model, lines, batch_tokens, target.ready):
            sink.write(written(pending.popleft(), found, form))
            total = Found(total.logprob + found.logprob, total.tokens + found.tokens)
            count += 1
        if not args.quiet:
            perplexity = math.exp(-total.per_token)
            said = f"perplexity {perplexity:.4f}, log-probability {total.logprob:.4f}"
            print(said, file=sys.stderr)
            say_speed(model, count, total.tokens, time.perf_counter() - start)


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


def encoded(
    model: decoding.Model,
    source: Input | None,
    target: Iterable[Record],
    args: argparse.Namespace,
) -> Iterator[Line]:
    """The ids of each line. source: None where the target's records hold it too, and for a model
    with a decoder alone. Raises ValueError where an encoder-decoder's source is nowhere."""
    from decoding.generation.resolve import resolve
    from decoding.text.languages import between

    config = resolve({}, None, model.generation_config)
    tokenizer, marks = between(model.tokenizer, args.src_lang, args.tgt_lang, config)
    model.generation_config |= marks
    if model.spec.encoder is None:
        return plain_lines(model, tokenizer, (record.text for record in target))
    if source is not None:
        pairs = paired((record.text for record in source), (record.text for record in target))
    elif args.input_format == "lines":
        raise ValueError("this model translates: say with --source what --target translates")
    else:
        pairs = ((source_of(record), record.text) for record in target)
    return parallel_lines(model, tokenizer, pairs)


def source_of(record: Record) -> str:
    """The source beside a target: the first column, or the key "source"."""
    source = record.columns[0] if len(record.columns) > 1 else record.fields.get("source")
    if not isinstance(source, str):
        raise ValueError(f"'source' of a JSON line must be a string, got {source!r}")
    return source


def parallel_lines(
    model: decoding.Model, tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]]
) -> Iterator[Line]:
    """Raises ValueError where a line is too long."""
    assert model.spec.encoder is not None
    limits = model.spec.encoder.positions, model.spec.decoder.positions
    for number, (source, target) in enumerate(pairs, 1):
        line = Line(tokenizer.encode(source), tokenizer.encode_target(target))
        for ids, most in zip((line.source or [], line.target), limits, strict=True):
            check_length(number, len(ids), most)
        yield line


def paired(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Raises ValueError where one side has fewer lines."""
    for count, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
        if source is None or target is None:
            short = "source" if source is None else "target"
            raise ValueError(
                f"the {short} has only {counted(count, 'line')}: it must have as many as the other"
            )
        yield source, target


def plain_lines(
    model: decoding.Model, tokenizer: Tokenizer, texts: Iterable[str]
) -> Iterator[Line]:
    """With the model's BOS before each line, so that its first token has a probability too."""
    bos = model.generation_config.get("bos_token_id")
    for number, text in enumerate(texts, 1):
        ids = tokenizer.encode_target(text)
        if bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        check_length(number, len(ids) - 1, model.spec.decoder.positions)
        yield Line(None, ids)


def check_length(number: int, tokens: int, most: int) -> None:
    if tokens > most:
        raise ValueError(
            f"line {number} has {tokens} tokens, the model has room for {most}: split it"
        )


def score_lines(
    model: decoding.Model,
    lines: Iterable[Line],
    batch_tokens: int,
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[Found]:
    """In order; as many lines in one call of the model as have `batch_tokens` or a little more.

    ready: says whether another line is there; where not, those read so far are scored at once.
    """

    def size(line: Line) -> int:
        return len(line.target) + len(line.source or [])

    for batch in batches(lines, size, batch_tokens, ready):
        some = [line for line in batch if line.target]
        found: Iterator[Found] = iter(())
        if some:
            targets = [line.target for line in some]
            if model.spec.encoder is None:
                scores = model.score(targets)
            else:
                scores = model.score([line.source for line in some], targets)
            sums, lengths = scores.sums.tolist(), scores.lengths.tolist()
            found = iter(map(Found, sums, lengths))
        for line in batch:
            yield next(found) if line.target else Found(0.0, 0)
