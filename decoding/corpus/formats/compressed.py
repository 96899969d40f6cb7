"""Files that may be compressed, for reading by lines and for writing."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from decoding.corpus.formats.layout import arrow


@contextlib.contextmanager
def reading(path: str, compression: str) -> Iterator[tuple[Any, BinaryIO]]:
    """The text of a file, and the file itself, whose position says how much has been read. Raises
    ValueError, with the name, for what cannot be decompressed."""
    with open(path, "rb") as file:
        try:
            if compression == ".gz":
                with gzip.open(file) as text:
                    yield text, file
            elif compression == ".zst":
                stream = arrow().CompressedInputStream(file, "zstd")
                yield io.BufferedReader(stream), file
            else:
                yield file, file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} cannot be decompressed: {error}") from None
        except OSError as error:  # pyarrow's have no number
            if error.errno is not None:
                raise
            raise ValueError(f"{path} cannot be decompressed: {error}") from None


@contextlib.contextmanager
def writing(path: str, compression: str) -> Iterator[Any]:
    """A new file, which is on the disk at the end. Equal texts become equal bytes; two compressed
    files, one behind the other, are the compressed file of both texts."""
    if compression == ".zst":
        with arrow().CompressedOutputStream(path, "zstd") as text:
            yield text
    else:
        with open(path, "wb") as file:
            if compression == ".gz":
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as text:
                    yield text
            else:
                yield file
    sync(path)


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
