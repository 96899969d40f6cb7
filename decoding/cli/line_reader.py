"""Lines of a file or pipe, which are read as they come."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import BinaryIO

CHUNK = 1 << 16  # bytes; a pipe holds as many


class LineReader:
    """The lines of one file without their ends, which may be "\\n" or "\\r\\n": in lists of those
    that are there at once. It knows whether another can be had without waiting for who writes it.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._lines: list[bytes] = []
        self._rest: list[bytes] = []  # of a line whose end is not there yet
        self._end = False
        try:
            self._file: int | None = stream.fileno()
        except OSError:  # a file in memory
            self._file = None

    def __iter__(self) -> Iterator[list[bytes]]:
        while not self._end or self._lines:
            while not self._lines and not self._end:
                self._fill()
            lines, self._lines = self._lines, []
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]

    def ready(self) -> bool:
        """Whether another line, or the end, is there."""
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
