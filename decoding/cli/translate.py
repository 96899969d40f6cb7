"""Translates text line by line, from standard input to standard output."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TextIO

from tqdm import tqdm

from decoding.cli.arguments import (
    add_language_arguments,
    add_model_arguments,
    load_model,
    place,
    positive,
)
from decoding.text.alignment import written
from decoding.text.translate import Translator


def stopping(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text, text)


# Arguments that have the name and meaning of generate()'s options: type, placeholder, help.
OPTIONS: dict[str, tuple[Callable[[str], Any], str, str | None]] = {
    "num_beams": (int, "N", None),
    "length_penalty": (float, "A", "score = sum / length^A"),
    "length_normalization": (str, "gnmt", "score = sum / ((5 + length) / 6)^A"),
    "early_stopping": (stopping, "true|false|never", None),
    "patience": (float, "P", "with early stopping: wait for num_beams * P finished rows"),
    "coverage_penalty": (float, "B", "for source words that get little attention"),
    "num_beam_groups": (int, "N", "diverse beam search; needs --diversity-penalty"),
    "diversity_penalty": (float, "D", "for tokens that earlier groups have chosen"),
    "diversity_rate": (float, "D", "for the lower ranks among a beam's continuations"),
    "max_length": (int, "N", "default: the model's, else 2 * source + 50"),
    "max_new_tokens": (int, "N", "the same without the start token"),
    "repetition_penalty": (float, "P", "above 1: less repetition"),
    "no_repeat_ngram_size": (int, "N", "no N-gram twice"),
    "temperature": (float, "T", None),
    "top_k": (int, "K", None),
    "top_p": (float, "P", None),
    "min_p": (float, "P", None),
    "seed": (int, "N", "makes sampling reproducible"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_language_arguments(parser)
    add = parser.add_argument
    add("--input", metavar="FILE", help="UTF-8, a sentence in each line (default: standard input)")
    add("--output", metavar="FILE", help="default: standard output")
    add("--n-best", type=positive, default=1, metavar="N", help="lines `id ||| text ||| score`")
    add("--scores", action="store_true", help="write lines `text ||| score`")
    add(
        "--alignments",
        action="store_true",
        help="append ` ||| i-j ...`: target word j is aligned to source word i, from 0",
    )
    add(
        "--batch-tokens",
        type=positive,
        default=4096,
        metavar="N",
        help="source tokens in one call of the model (default: 4096)",
    )
    add(
        "--shortlist",
        metavar="FILE",
        help="restricts the vocabulary, see `decoding shortlist`; CPU",
    )
    add("--progress", action="store_true", help="show sentences per second and the time left")
    search = parser.add_argument_group(
        "search", "the default of each option is the model's own value"
    )
    add = search.add_argument
    add("--do-sample", action="store_const", const=True, help="sample tokens instead of searching")
    for name, (kind, placeholder, help) in OPTIONS.items():
        add(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=help)


def run(args: argparse.Namespace) -> None:
    with warnings_in_one_line(), contextlib.ExitStack() as files:
        source: BinaryIO = sys.stdin.buffer
        if args.input:
            source = files.enter_context(open(args.input, "rb"))
        model = load_model(args)
        translator = Translator(
            model,
            n_best=args.n_best if args.scores or args.n_best > 1 else None,
            batch_tokens=args.batch_tokens,
            alignments=args.alignments,
            src_lang=args.src_lang,
            tgt_lang=args.tgt_lang,
            shortlist=args.shortlist,
            **{
                name: value
                for name in (*OPTIONS, "do_sample")
                if (value := getattr(args, name)) is not None
            },
        )
        # Opened last: what was wrong so far must not cost an older output.
        sink: BinaryIO = sys.stdout.buffer
        if args.output:
            refuse_overwriting(args.input, args.output)
            sink = files.enter_context(open(args.output, "wb"))
        start = time.perf_counter()
        lines = translate_lines(translator, source, sink, args)
        seconds = time.perf_counter() - start
    print(
        f"{lines} lines, {translator.tokens} tokens in {seconds:.1f} s: "
        f"{lines / seconds:.1f} sentences/s, {translator.tokens / seconds:.0f} tokens/s "
        f"with {place(model)}",
        file=sys.stderr,
    )


def translate_lines(
    translator: Translator, source: BinaryIO, sink: BinaryIO, args: argparse.Namespace
) -> int:
    """Writes each line as soon as it is there; returns how many there were."""
    count = 0
    lines = read_lines(source, args.input or "standard input")
    ahead = 0 if source.isatty() else 1  # on a terminal, each line is translated at once
    total = count_lines(source) if args.progress else None
    with tqdm(
        total=total, unit=" sentences", file=sys.stderr, disable=not args.progress
    ) as progress:
        for hypotheses in translator.stream(lines, ahead):
            for text, score, pairs in hypotheses:
                text = text.replace("\n", " ")  # byte-level vocabularies have it
                head = f"{count} ||| " if args.n_best > 1 else ""
                tail = f" ||| {score:.4f}" if translator.n_best else ""
                tail += f" ||| {written(pairs)}" if args.alignments else ""
                sink.write(f"{head}{text}{tail}\n".encode())
            sink.flush()
            progress.update()
            count += 1
    return count


def read_lines(source: BinaryIO, name: str) -> Iterator[str]:
    """Lines without their newlines. Raises ValueError, naming the line, where one is not UTF-8."""
    for number, line in enumerate(source, 1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number} is not UTF-8: byte {error.start + 1} is "
                f"0x{line[error.start]:02x}"
            ) from None


def count_lines(source: BinaryIO) -> int | None:
    """The number of lines to come; None where the source cannot be read twice."""
    if not source.seekable():
        return None
    here = source.tell()
    count = sum(1 for _ in source)
    source.seek(here)
    return count


def refuse_overwriting(source: str | None, sink: str) -> None:
    if source and os.path.exists(sink) and os.path.samefile(source, sink):
        raise ValueError(f"{sink} is the input too: write to another file")


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Shows each warning once, without the place in our code that it came from."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        tqdm.write(f"decoding: warning: {message}", file=sys.stderr)  # above the progress bar

    with warnings.catch_warnings():
        warnings.simplefilter("once")
        warnings.showwarning = show
        yield
