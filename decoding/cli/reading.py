"""The input of a command: its arguments, and the records of several files."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from decoding.cli.corpus.arguments import FORMATS as JOB_FORMATS
from decoding.cli.line_reader import CHUNK, LineReader
from decoding.cli.messages import counted
from decoding.cli.records import FORMATS, Record, json_record, tsv_record
from decoding.common.encodings import ERRORS, line_encoding

NAMED = 10  # lines that a warning names


def add_reading_arguments(parser: argparse.ArgumentParser, what: str, field: str) -> None:
    """what: a line's; field: its key in a JSON line."""
    files = f"{what} in each line; - or none: standard input"
    parser.add_argument("files", nargs="*", metavar="FILE", help=files)
    add_input_argument(parser)
    add_format_arguments(parser)
    parser.add_argument(
        "--field",
        "--column",
        metavar="NAME",
        help=f"key of a JSON line's text, or column of a table's (default: {field}; TSV: 1)",
    )


def add_input_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i",
        "--input",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="the same as FILE; several are read one after the other",
    )


def add_format_arguments(parser: argparse.ArgumentParser, formats: bool = True) -> None:
    """formats: whether the input may be other than plain lines."""
    add = parser.add_argument_group("reading").add_argument
    parser.set_defaults(input_format=None)
    if formats:
        usual = "default: lines; of a job, by the file's name"
        add("--input-format", choices=(*FORMATS, *JOB_FORMATS), help=usual)
    add("--encoding", type=encoding, default="utf-8", help="of the input (default: utf-8)")
    add(
        "--errors",
        choices=ERRORS,
        default="strict",
        help="bytes that are not in the encoding: stop, replace them by U+FFFD, or take the line "
        "as empty (default: strict)",
    )


def open_input(args: argparse.Namespace, key: str, kinds: tuple[type, ...] = (str,)) -> Input:
    """The input that add_reading_arguments describes; key: of a JSON line's text by default."""
    field = args.field or ("1" if args.input_format == "tsv" else key)
    return Input(args, [*args.files, *args.input], field, key, kinds)


def encoding(name: str) -> str:
    """Parses the name of an encoding."""
    try:
        return line_encoding(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def opened_input(name: str) -> BinaryIO:
    """name: - is standard input."""
    if name != "-":
        return open(name, "rb")
    if sys.stdin is None:
        raise ValueError("standard input is closed: name a file to read")
    return sys.stdin.buffer


def check_apart(source: Input, target: Input) -> None:
    """Raises ValueError where both read standard input: each would get some of its lines."""
    if "-" in source.names and "-" in target.names:
        raise ValueError(
            "source and target are both standard input, which can be read once: name a file for "
            "one of them"
        )


def is_pipe(name: str) -> bool:
    """Whether a file is a named pipe, which can be opened once."""
    return name != "-" and os.path.exists(name) and stat.S_ISFIFO(os.stat(name).st_mode)


def read_template(path: str) -> str:
    """A chat template."""
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no chat template: {error.reason}, as UTF-8") from None


class Input:
    """The records of several files. Raises OSError at once where one cannot be opened, and while it
    is read ValueError, which names file and line, for what is not in the encoding or format."""

    def __init__(
        self,
        args: argparse.Namespace,
        names: Sequence[str],
        field: str,
        key: str = "text",
        kinds: tuple[type, ...] = (str,),
    ) -> None:
        """args: those of add_format_arguments. names: - is standard input, as is no name. field: of
        a text, a JSON line's key or a TSV line's column from 1. key: that a text has in JSON where
        the input is none. kinds: that JSON's text may have."""
        self.names, self._kinds, self.key = list(names) or ["-"], kinds, key
        self._encoding, self._errors = args.encoding, args.errors
        self._format, self.field = args.input_format, field
        if self._format == "tsv" and not (field.isdecimal() and int(field)):
            raise ValueError(f"--field {field}: a TSV line's columns are numbered, from 1")
        self._skipped: list[str] = []
        self._reader: LineReader | None = None
        for name in self.names:
            if is_pipe(name):  # a look would send its writer away, with what it has written
                continue
            stream = opened_input(name)  # which says at once what is missing
            if name != "-":
                stream.close()

    def __iter__(self) -> Iterator[list[Record]]:
        """Lists of records that are there at once."""
        for name in self.names:
            said = "standard input" if name == "-" else name
            stream = opened_input(name)
            self._reader, done = LineReader(stream, said), 0
            try:
                for lines in self._reader:
                    yield from self._records(lines, said, done)
                    done += len(lines)
            finally:
                if name != "-":
                    stream.close()
        if self._skipped:
            warnings.warn(skipped(self._skipped, self._encoding), stacklevel=2)

    def ready(self) -> bool:
        """Whether another record can be had without waiting."""
        return self._reader is None or self._reader.ready()

    def total(self) -> int | None:
        """The number of lines; None where an input cannot be read twice."""
        count = 0
        for name in self.names:
            if is_pipe(name):
                return None
            stream = opened_input(name)
            if not stream.seekable():
                return None
            here, last = stream.tell(), b"\n"
            while chunk := stream.read(CHUNK):
                count, last = count + chunk.count(b"\n"), chunk[-1:]
            count += last != b"\n"
            stream.seek(here)
            if name != "-":
                stream.close()
        return count

    def _records(self, lines: Sequence[bytes], name: str, done: int) -> Iterator[list[Record]]:
        """done: lines of the file before these. An error comes behind the records before it."""
        records = list[Record]()
        try:
            for number, line in enumerate(lines, done + 1):
                records.append(self._record(line, f"{name}, line {number}", number == 1))
        except ValueError:
            if records:
                yield records
            raise
        yield records

    def _record(self, line: bytes, where: str, first: bool) -> Record:
        text = self._decoded(line, where)
        if first:
            text = text.removeprefix("\ufeff")  # a byte order mark
        if self._format == "json":
            return json_record(text, self.field, where, self._kinds)
        if self._format == "tsv":
            return tsv_record(text, int(self.field), where)
        return Record(where, text, [text], {self.key: text})

    def _decoded(self, line: bytes, where: str) -> str:
        try:
            return line.decode(self._encoding, "replace" if self._errors == "replace" else "strict")
        except UnicodeDecodeError as error:
            if self._errors == "skip":
                self._skipped.append(where)
                return ""
            raise ValueError(
                f"{where} is not {self._encoding.upper()}: byte {error.start + 1} is "
                f"0x{line[error.start]:02x} (see --encoding and --errors)"
            ) from None


def skipped(lines: Sequence[str], encoding: str) -> str:
    more = f" and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    some = "; ".join(lines[:NAMED])
    return f"{counted(len(lines), 'line')} not in {encoding.upper()}, taken as empty: {some}{more}"
