"""The output of a command: lines of results, plain, as TSV or as JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from decoding.cli.corpus.arguments import FORMATS as JOB_FORMATS
from decoding.cli.records import FORMATS


def add_writing_arguments(
    parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS
) -> None:
    """formats: of the output; the input's is the default where it is one of them, else the
    first."""
    add = parser.add_argument_group("writing").add_argument
    add("-o", "--output", metavar="FILE", help="default: standard output; of a job, FILE or DIR")
    usual = "as the input" if "lines" in formats else formats[0]
    add("--output-format", choices=(*formats, *JOB_FORMATS), help=f"default: {usual}")
    add(
        "--json",
        dest="output_format",
        action="store_const",
        const="json",
        help="write JSON lines: --output-format json",
    )
    add("--quiet", action="store_true", help="neither statistics nor warnings")


# json.dumps() makes one of its own for each line.
JSON = json.JSONEncoder(ensure_ascii=False)


def json_line(fields: dict[str, Any]) -> str:
    return JSON.encode(fields) + "\n"


class Sink:
    """Where lines are written; errors name the file."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str | bytes) -> None:
        """Writes and flushes, so that who reads has it."""
        with self._named_errors():
            self._stream.write(text.encode() if isinstance(text, str) else text)
            self._stream.flush()

    def position(self) -> int | None:
        """Where the next byte goes, in a file whose bytes can be rewritten; None in a pipe and in a
        file that is appended to."""
        try:
            file = self._stream.fileno()
        except OSError:  # a stream in memory has none
            return None
        appended = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND
        if appended or not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return self._stream.tell()

    def rewrite(self, data: bytes, position: int) -> None:
        """Replaces bytes that have been written; `position` is one that position() has told."""
        with self._named_errors():
            os.pwrite(self._stream.fileno(), data, position)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._name) from error


@contextlib.contextmanager
def opened(output: str | None, inputs: Sequence[str]) -> Iterator[Sink]:
    """The sink of --output, or standard output. Raises ValueError where it is one of the inputs, as
    it would be emptied before it is read."""
    if output is None or output == "-":
        if sys.stdout is None:
            raise ValueError("standard output is closed: write to a file with --output")
        yield Sink(sys.stdout.buffer, "standard output")
        return
    refuse_overwriting(inputs, output)
    file = open(output, "wb")
    try:
        yield Sink(file, output)
    finally:
        with contextlib.suppress(OSError):  # the sink has flushed, or has raised the same
            file.close()


def refuse_overwriting(inputs: Sequence[str], output: str) -> None:
    """inputs: - is standard input, which may be a file too, as a shell's `<` has it."""
    if not os.path.isfile(output):  # what is no file is not emptied
        return
    written = os.stat(output)
    for source in inputs:
        if source == "-" or os.path.exists(source):
            if os.path.samestat(os.stat(0 if source == "-" else source), written):
                raise ValueError(f"{output} is the input too: write to another file")
