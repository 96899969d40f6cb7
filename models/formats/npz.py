"""numpy's .npz archives: what their headers claim is compared with the archive's own sizes before
anything is read."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from decoding.models.files import ModelFileError, open_file, short

MOST_TIMES = 4  # bytes of all arrays to those of the archive, where it is compressed
AND_BYTES = 32 << 20  # and as many more
SUFFIX = ".npy"


class Header(NamedTuple):
    """What an array claims to be."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_headers(path: Path, most: int | None = None) -> dict[str, Header]:
    """The arrays of an archive by their names. most: bytes of all of them; None: in proportion to
    the archive's.

    Raises ModelFileError where it is damaged, or an array has not the bytes that it claims.
    """
    headers = {}
    with reading(path) as archive:
        entries = archive.infolist()
        if most is None:
            most = MOST_TIMES * path.stat().st_size + AND_BYTES
        if sum(entry.file_size for entry in entries) > most:
            raise ModelFileError(
                f"{path} is a small archive of large arrays: write it again, uncompressed "
                "(numpy.savez), if you trust it"
            )
        for entry in entries:
            with archive.open(entry) as file:
                header = read_header(file)
                if file.tell() + header.nbytes != entry.file_size:
                    raise ModelFileError(
                        f"{path}: {short(entry.filename)} has {entry.file_size} bytes, too few or "
                        f"too many for {header.dtype} {short(list(header.shape))}"
                    )
            headers[entry.filename.removesuffix(SUFFIX)] = header
    return headers


def read_array(path: Path, name: str) -> np.ndarray[Any, Any]:
    """An array whose header has been read. Raises ModelFileError as read_headers()."""
    with reading(path) as archive, archive.open(name + SUFFIX) as file:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def read_header(file: Any) -> Header:
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an array's header is of the version {version}")
    shape, _, dtype = readers[version](file)
    if min(shape, default=0) < 0 or dtype.hasobject:
        raise ValueError(f"an array claims to be {dtype} {short(list(shape))}")
    return Header(tuple(map(int, shape)), dtype)


@contextmanager
def reading(path: Path) -> Iterator[zipfile.ZipFile]:
    file: BinaryIO
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (FileNotFoundError, ModelFileError):
        raise
    except Exception as error:  # a damaged file makes zipfile and numpy raise any
        raise ModelFileError(f"{path} cannot be read as an .npz archive: {short(error)}") from error
