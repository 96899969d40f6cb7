"""allocator.c, which fails chosen allocations of decoding._C, as Python drives it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from decoding import _C
from decoding.models.weights import memory

SOURCE = Path(__file__).parent / "allocator.c"
MOST_CALLERS = 24
# pybind11 3 enters a new object into its table outside of its own try block: a lack of memory ends
# the process there, whoever uses it.
SPARED = "::init_instance<"


def build(folder: Path) -> Path:
    """The library to preload."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler, as the build does"
    library = folder / "allocator.so"
    flags = ["-std=gnu11", "-shared", "-fPIC", "-O1"]
    subprocess.check_call([compiler, *flags, SOURCE, "-o", library, "-ldl"])
    return library


class Allocator:
    """Of a process in which the library is preloaded. It counts allocations of decoding._C, blocks
    of memory that Python maps for it, and threads that Python starts."""

    def __init__(self) -> None:
        shim = ctypes.CDLL(None)
        shim.faults_watch.argtypes = [ctypes.c_char_p]
        shim.faults_arm.argtypes = [ctypes.c_long, ctypes.c_bool]
        shim.faults_next.restype = ctypes.c_bool
        shim.faults_seen.restype = shim.faults_live.restype = ctypes.c_long
        self._shim = shim
        shim.faults_spare.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        shim.faults_watch(os.fsencode(_C.__file__))
        for offset, size in functions_named(SPARED):
            shim.faults_spare(offset, size)

    @contextmanager
    def failing(self, number: int, lasting: bool) -> Iterator[None]:
        """The allocation of this number fails, from 0 on, and where it is lasting, all after it."""
        failure = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        mapping = SimpleNamespace(**{**vars(mmap), "mmap": self._failing(mmap.mmap, failure)})
        starting = self._failing(threading.Thread.start, RuntimeError("can't start new thread"))
        with (
            mock.patch.object(memory, "mmap", mapping),
            mock.patch.object(threading.Thread, "start", starting),
        ):
            self._shim.faults_arm(number, lasting)
            try:
                yield
            finally:
                self.seen: int = self._shim.faults_seen()
                self._shim.faults_arm(-1, False)

    def _failing(self, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._shim.faults_next():
                raise error
            return function(*args, **options)

        return call

    @property
    def live(self) -> int:
        """Allocations of decoding._C that were not freed."""
        return int(self._shim.faults_live())

    def callers(self) -> list[str]:
        """The functions of decoding._C from which the last failure came, where the library has
        their names."""
        offsets = (ctypes.c_long * MOST_CALLERS)()
        count = self._shim.faults_callers(offsets, MOST_CALLERS)
        tool = shutil.which("addr2line")
        if tool is None or not count:
            return []
        command = [tool, "--functions", "--demangle", "-e", _C.__file__]
        said = subprocess.run(
            [*command, *(f"{offset - 1:#x}" for offset in offsets[:count])],
            capture_output=True,
            text=True,
        )
        return said.stdout.splitlines()[::2]


def functions_named(part: str) -> Iterator[tuple[int, int]]:
    """Offset and size of the functions of decoding._C whose name has this part."""
    command = ["nm", "--demangle", "--print-size", "--defined-only", _C.__file__]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    ):
        offset, _, rest = line.partition(" ")
        size, _, name = rest.partition(" ")
        if part in name and size.strip():
            yield int(offset, 16), int(size, 16)
