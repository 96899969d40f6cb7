"""Files and directories that appear under their names when they are complete, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` at the end; after an error nothing has
    changed. A link is followed. A device or a pipe is written to as it is."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    unfinished = unfinished_beside(path)
    try:
        file = unfinished.open("xb")
    except OSError as error:
        error.filename = str(path)  # the name that was asked for
        raise
    try:
        with file:
            yield file
            flush(file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    flush_directory(path.parent)


@contextmanager
def replacing_directory(path: Path, last: str) -> Iterator[Path]:
    """An empty directory to fill, whose files are those of `path` at the end; others that are there
    already stay. After an error nothing has changed.

    last: the file without which the directory is of no use: where others must be replaced one by
    one, it goes first and comes back last. Raises ValueError where a link leads out of `path`.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = unfinished_beside(path)
    unfinished.mkdir()
    try:
        yield unfinished
        files = sorted(each for each in unfinished.rglob("*") if each.is_file())
        for each in files:
            with each.open("rb") as file:
                flush(file)
        if not path.exists() or not any(path.iterdir()):
            unfinished.replace(path)
        else:
            replace_files(unfinished, path, files, last)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    flush_directory(path)
    flush_directory(path.parent)


def replace_files(source: Path, target: Path, files: list[Path], last: str) -> None:
    names = [each.relative_to(source) for each in files]
    for name in names:
        folder = (target / name).parent
        if not folder.resolve().is_relative_to(target):
            raise ValueError(f"{folder} leads out of {target}: remove that link")
    (target / last).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == Path(last)):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).replace(target / name)


def unfinished_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")


def flush(file: BinaryIO) -> None:
    """Has the system write to the disk what it holds of a file."""
    file.flush()
    os.fsync(file.fileno())


def flush_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
