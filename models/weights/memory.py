"""Blocks of the CPU's memory, and files in memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.models.files import ModelFileError, open_file, size_of


def block(size: int) -> npt.NDArray[np.uint8]:
    """uint8 [size]. Raises MemoryError where there is no memory left.

    It is page-aligned and goes back to the system with its last view, in pages of 2 MB where Linux
    has them: every step reads all weights, and one thread then reads 10 to 20 % more of them in a
    second. Pages take memory only once they are written.
    """
    with memory_errors():
        pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)[:size]


def mapped(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, uint8 [size], in pages that processes share until one writes to them.

    Raises ModelFileError for an empty one, MemoryError where there is no room for it, and as
    open_file().
    """
    with open_file(path) as file:
        if not size_of(file):
            raise ModelFileError(f"{path} is empty")
        with memory_errors():
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return np.frombuffer(pages, np.uint8)


@contextmanager
def memory_errors() -> Iterator[None]:
    """A lack of memory is a MemoryError, and none of the file's."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(str(error)) from error


def address(array: npt.NDArray[Any]) -> int:
    """Where its first number is."""
    found: int = array.__array_interface__["data"][0]
    return found


def release_pages(array: npt.NDArray[Any]) -> None:
    """Takes an array of a mapped file out of memory; who reads it again finds it in the file.

    array: contiguous, in pages of a file that nobody has written to: they would be lost.
    """
    begin = address(array) // mmap.PAGESIZE * mmap.PAGESIZE
    size = address(array) + array.nbytes - begin
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None and size > 0:
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def trim() -> None:
    """Gives back to the system what malloc keeps of freed memory, where the C library can (glibc).

    Loading frees many tensors of a few MB each, which malloc would keep for good: 120 MB beside the
    300 MB of a Transformer-base.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
