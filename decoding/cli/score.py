"""Scores text with a model: the log-probability of each line, and the perplexity.

Output lines are `log-probability ||| per token ||| tokens`, with natural logarithms.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import decoding
from decoding.cli.arguments import (
    add_language_arguments,
    add_model_arguments,
    load_model,
    place,
    positive,
)
from decoding.cli.translate import read_lines, refuse_overwriting, warnings_in_one_line
from decoding.generation.resolve import resolve
from decoding.text.languages import between
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
    add("--source", metavar="FILE", help="the sources of --target, for encoder-decoders")
    add("--target", metavar="FILE", help="UTF-8, a sentence in each line (default: standard input)")
    add("--output", metavar="FILE", help="default: standard output")
    add(
        "--batch-tokens",
        type=positive,
        default=4096,
        metavar="N",
        help="tokens in one call of the model (default: 4096)",
    )


def run(args: argparse.Namespace) -> None:
    with warnings_in_one_line(), contextlib.ExitStack() as files:
        target: BinaryIO = sys.stdin.buffer
        if args.target:
            target = files.enter_context(open(args.target, "rb"))
        source = files.enter_context(open(args.source, "rb")) if args.source else None
        model = load_model(args)
        config = resolve({}, None, model.generation_config)
        tokenizer, marks = between(model.tokenizer, args.src_lang, args.tgt_lang, config)
        model.generation_config |= marks
        texts = read_lines(target, args.target or "standard input")
        if model.spec.encoder is None and source is not None:
            raise ValueError("this model has a decoder alone: leave --source out")
        if model.spec.encoder is None:
            lines = plain_lines(model, tokenizer, texts)
        elif source is not None:
            sources = read_lines(source, args.source)
            lines = parallel_lines(model, tokenizer, sources, texts)
        else:
            raise ValueError("this model translates: say with --source what --target translates")
        # Opened last: what was wrong so far must not cost an older output.
        sink: BinaryIO = sys.stdout.buffer
        if args.output:
            for given in (args.source, args.target):
                refuse_overwriting(given, args.output)
            sink = files.enter_context(open(args.output, "wb"))
        start = time.perf_counter()
        total, count = Found(0.0, 0), 0
        for found in score_lines(model, lines, args.batch_tokens):
            sink.write(
                f"{found.logprob:.4f} ||| {found.per_token:.4f} ||| {found.tokens}\n".encode()
            )
            total = Found(total.logprob + found.logprob, total.tokens + found.tokens)
            count += 1
        seconds = time.perf_counter() - start
    print(
        f"perplexity {math.exp(-total.per_token):.4f}, log-probability {total.logprob:.4f}\n"
        f"{count} lines, {total.tokens} tokens in {seconds:.1f} s: "
        f"{total.tokens / seconds:.0f} tokens/s with {place(model)}",
        file=sys.stderr,
    )


def parallel_lines(
    model: decoding.Model, tokenizer: Tokenizer, sources: Iterable[str], targets: Iterable[str]
) -> Iterator[Line]:
    """Raises ValueError where a line is too long, or one side has fewer lines."""
    assert model.spec.encoder is not None
    limits = model.spec.encoder.positions, model.spec.decoder.positions
    for number, (source, target) in enumerate(paired(sources, targets), 1):
        line = Line(tokenizer.encode(source), tokenizer.encode_target(target))
        for ids, most in zip((line.source or [], line.target), limits, strict=True):
            check_length(number, len(ids), most)
        yield line


def paired(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Raises ValueError where one side has fewer lines."""
    for count, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
        if source is None or target is None:
            short = "source" if source is None else "target"
            raise ValueError(f"the {short} has only {count} lines: it must have as many")
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


def score_lines(model: decoding.Model, lines: Iterable[Line], batch_tokens: int) -> Iterator[Found]:
    """In order; as many lines in one call of the model as have `batch_tokens` or a little more."""
    for batch in batches(lines, batch_tokens):
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


def batches(lines: Iterable[Line], tokens: int) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.target) + len(line.source or [])
        if size >= tokens:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
