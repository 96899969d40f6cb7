"""What the program says on standard error: warnings, statistics, errors, each in one line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import decoding


@contextlib.contextmanager
def warnings_in_one_line(quiet: bool = False) -> Iterator[None]:
    """Shows each warning once, without the place in our code that it came from. quiet: not at
    all."""
    shown = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if str(message) not in shown:
            from tqdm import tqdm

            shown.add(str(message))
            tqdm.write(f"decoding: warning: {message}", file=sys.stderr)  # above the progress bar

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "always")
        warnings.showwarning = show
        yield


def place(model: decoding.Model) -> str:
    """The device or threads of a model."""
    if model.place.type == "cpu":
        return counted(model.threads, "thread")
    from decoding.engine.devices import gpu_name

    return f"{gpu_name(model.place)} in {model.dtype_name}"


def counted(count: int, what: str) -> str:
    """1 line, 2 lines."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def described(error: Exception) -> str:
    """An error's message in one line; that of a system call with its file, without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or "there is no memory left"  # as a MemoryError says it
