"""Translates text line by line, from standard input to standard output."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from tqdm import tqdm

from decoding.alignment import written
from decoding.cli.arguments import add_model_arguments, load_model, place, positive
from decoding.translate import Translator

# Arguments that have the name and meaning of generate()'s options.
OPTIONS = (
    "num_beams",
    "length_penalty",
    "early_stopping",
    "max_length",
    "max_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "seed",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("--input", metavar="FILE", help="UTF-8, a sentence in each line (default: standard input)")
    add("--output", metavar="FILE", help="default: standard output")
    add("--n-best", type=positive, default=1, metavar="N", help="lines `id ||| text ||| score`")
    add("--scores", action="store_true", help="lines `text ||| score`")
    add(
        "--alignments",
        action="store_true",
        help="lines `... ||| i-j ...`: word j stems from word i, counted from 0",
    )
    add(
        "--batch-tokens",
        type=positive,
        default=4096,
        metavar="N",
        help="source tokens in one call of the model (default: 4096)",
    )
    add("--progress", action="store_true", help="show sentences per second and the time left")
    search = parser.add_argument_group("search", "without an option the model's own value counts")
    add = search.add_argument
    add("--num-beams", type=int, metavar="N")
    add("--length-penalty", type=float, metavar="A", help="score = sum / length^A")
    add("--early-stopping", type=stopping, metavar="true|false|never")
    add("--max-length", type=int, metavar="N", help="default: the model's, else 2 * source + 50")
    add("--max-new-tokens", type=int, metavar="N", help="the same without the start token")
    add("--do-sample", action="store_const", const=True, help="draw tokens instead of searching")
    add("--temperature", type=float, metavar="T")
    add("--top-k", type=int, metavar="K")
    add("--top-p", type=float, metavar="P")
    add("--seed", type=int, help="makes sampling repeat")


def stopping(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text, text)


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
            **{name: value for name in OPTIONS if (value := getattr(args, name)) is not None},
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
    ahead = 0 if source.isatty() else 1  # who types a line waits for its translation
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
    """The lines without their ends. Raises ValueError, naming the line, where one is not UTF-8."""
    for number, line in enumerate(source, 1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number} is not UTF-8: byte {error.start + 1} is "
                f"0x{line[error.start]:02x}"
            ) from None


def count_lines(source: BinaryIO) -> int | None:
    """How many lines are to come; None where reading them would use them up."""
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
