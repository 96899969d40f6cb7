"""The input of a command: lines of several files, plain, as TSV or as JSON lines."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import select
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")

FORMATS = ("lines", "tsv", "json")
CHUNK = 1 << 16  # bytes; a pipe holds as many
NAMED = 10  # lines that a warning names


def add_reading_arguments(parser: argparse.ArgumentParser, what: str, field: str) -> None:
    """what: a line's; field: its key in a JSON line."""
    files = f"{what} in each line; - or none: standard input"
    parser.add_argument("files", nargs="*", metavar="FILE", help=files)
    add_input_argument(parser)
    add_format_arguments(parser)
    parser.add_argument(
        "--field",
        metavar="NAME",
        help=f"key of a JSON line's text, or column of a TSV line's (default: {field}, 1)",
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
    parser.set_defaults(input_format="lines")
    if formats:
        add("--input-format", choices=FORMATS, default="lines", help="default: lines")
    add("--encoding", type=encoding, default="utf-8", help="of the input (default: utf-8)")
    add(
        "--errors",
        choices=("strict", "replace", "skip"),
        default="strict",
        help="bytes that are not in the encoding: stop, replace them by U+FFFD, or take the line "
        "as empty (default: strict)",
    )


def open_input(args: argparse.Namespace, key: str, kinds: tuple[type, ...] = (str,)) -> Input:
    """The input that add_reading_arguments describes; key: of a JSON line's text by default."""
    field = args.field or ("1" if args.input_format == "tsv" else key)
    return Input(args, [*args.files, *args.input], field, key, kinds)


def encoding(name: str) -> str:
    """Parses the name of an encoding in which a line ends with the byte 0x0a."""
    try:
        known = codecs.lookup(name).name
        splits = b"a\nb".decode(known) == "a\nb"
    except LookupError:
        raise argparse.ArgumentTypeError(f"there is no encoding {name!r}") from None
    except UnicodeError:
        splits = False
    if not splits:
        raise argparse.ArgumentTypeError(
            f"lines of {known} do not end with one byte: convert the text with iconv first"
        )
    return known


@dataclass(frozen=True)
class Record:
    """A line of the input.

    where: its file and number. text: what the command reads: a str, but for JSON's messages.
    columns: of a TSV line. fields: of a JSON line. Each form is there for each input, since the
    output may have another.
    """

    where: str
    text: Any
    columns: list[str]
    fields: dict[str, Any]


class LineReader:
    """The lines of one file without their ends, which may be "\\n" or "\\r\\n". It knows whether
    the next one can be had without waiting for who writes it."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []  # of a line whose end is not there yet
        self._end = False
        try:
            self._file: int | None = stream.fileno()
        except OSError:  # a file in memory
            self._file = None

    def __iter__(self) -> Iterator[bytes]:
        while not self.empty():
            while not self._lines and not self._end:
                self._fill()
            if self._lines:
                yield self._lines.popleft().removesuffix(b"\r")

    def empty(self) -> bool:
        """Whether the last line has been read."""
        return self._end and not self._lines

    def ready(self) -> bool:
        """Whether the next line, or the end, is there."""
        while not self._lines and not self._end and self._readable():
            self._fill()
        return bool(self._lines) or self._end

    def _readable(self) -> bool:
        if self._file is None:
            return True
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        return bool(poll.poll(0))

    def _fill(self) -> None:
        try:
            read = self._stream.read if self._file is None else self._read_file
            chunk = read(CHUNK)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._name) from error
        if not chunk:
            self._end = True
            if self._rest:
                self._lines.append(b"".join(self._rest))
            return
        first, *more = chunk.split(b"\n")
        self._rest.append(first)
        if more:
            self._lines.append(b"".join(self._rest))
            self._lines.extend(more[:-1])
            self._rest = [more[-1]] if more[-1] else []

    def _read_file(self, size: int) -> bytes:
        assert self._file is not None
        return os.read(self._file, size)


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
            if name != "-":
                open(name, "rb").close()

    def __iter__(self) -> Iterator[Record]:
        for name in self.names:
            said = "standard input" if name == "-" else name
            stream = sys.stdin.buffer if name == "-" else open(name, "rb")
            self._reader = LineReader(stream, said)
            try:
                for at, line in enumerate(self._reader, 1):
                    yield self._record(line, f"{said}, line {at}", at == 1)
            finally:
                if name != "-":
                    stream.close()
        if self._skipped:
            warnings.warn(skipped(self._skipped, self._encoding), stacklevel=2)

    def ready(self) -> bool:
        """Whether the next record can be had without waiting."""
        return self._reader is None or self._reader.ready()

    def total(self) -> int | None:
        """The number of lines; None where an input cannot be read twice."""
        count = 0
        for name in self.names:
            stream = sys.stdin.buffer if name == "-" else open(name, "rb")
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

    def _record(self, line: bytes, where: str, first: bool) -> Record:
        text = self._decoded(line, where)
        if first:
            text = text.removeprefix("\ufeff")  # a byte order mark
        if self._format == "json":
            return json_record(text, self.field, where, self._kinds)
        if self._format == "tsv":
            return tsv_record(text, int(self.field), self.key, where)
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
    return f"{len(lines)} lines are not {encoding.upper()} and count as empty: {some}{more}"


def tsv_record(line: str, column: int, key: str, where: str) -> Record:
    columns = line.split("\t")
    if not line:  # stays empty
        columns = [""] * column
    if len(columns) < column:
        raise ValueError(f"{where} has {len(columns)} columns, and column {column} is asked for")
    text = columns[column - 1]
    return Record(where, text, columns, {key: text})


def json_record(line: str, key: str, where: str, kinds: tuple[type, ...]) -> Record:
    """An object with `key`, or its value alone; an empty line is an empty text."""
    try:
        value = json.loads(line) if line.strip() else ""
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds half of a UTF-16 surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where} is no JSON: {error} (for plain lines leave --input-format out)"
        ) from None
    fields = value if isinstance(value, dict) else {key: value}
    text = fields.get(key)
    if not isinstance(text, kinds):
        names = "a string or a list" if list in kinds else "a string"
        raise ValueError(f"{where} must be {names}, or an object in which {key!r} is one")
    return Record(where, text, [text if isinstance(text, str) else line], fields)


def kept(records: Iterable[Record], pending: deque[Record]) -> Iterator[Record]:
    """The records, each of which is put into `pending` when it is read, until it is answered."""
    for record in records:
        pending.append(record)
        yield record


def batches(
    items: Iterable[T], size: Callable[[T], int], most: int, ready: Callable[[], bool]
) -> Iterator[list[T]]:
    """Successive items whose sizes together are `most` or a little more; fewer where no other item
    is there."""
    batch: list[T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= most or not ready():
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
