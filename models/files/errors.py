"""The error of a model's file, and contents of files in messages."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 300  # characters of another library's message


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
    text = clipped(str(value))
    return text if " " in text else f"{type(value).__name__} {text}"  # a KeyError says its key


def clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Makes each ModelFileError inside name the option that led to its file."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{option}: {error}") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes each ValueError inside a ModelFileError that names the file, or one in there."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ModelFileError) and str(path) in str(error):
            raise
        raise ModelFileError(f"{path}: {error}") from error
