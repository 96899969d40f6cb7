"""The error of a model's file, and contents of files in messages."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 200  # characters of another library's message


class ModelFileError(ValueError):
    """A file of a model is damaged, hostile or not what it should be; the message names it."""


class Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 100, 100
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 8

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"a number of {x.bit_length()} bits"


def short(value: object) -> str:
    """What a file holds, or a library's error, for a message: of bounded length, in bounded
    time."""
    if not isinstance(value, BaseException):
        return Short().repr(value)
    text = str(value)[: LONGEST + 1]
    if " " not in text:  # a KeyError says its key alone
        text = f"{type(value).__name__} {text}"
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes each ValueError inside a ModelFileError that names the file."""
    try:
        yield
    except ModelFileError:
        raise
    except ValueError as error:
        raise ModelFileError(f"{path}: {error}") from error
