"""Cuts the inputs of a job into shards."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from decoding.corpus.formats.blocks import blocks
from decoding.corpus.formats.layout import FileType, Layout


class Source(NamedTuple):
    """An input file. size: its bytes."""

    path: str
    type: FileType
    size: int


@dataclass
class Shard:
    """Successive rows of one input, which one worker answers.

    number: from 0, in the order of the output. source: of its input. first: its first row in the
    input, from 0; total: in the whole job. share: of the bytes of all inputs. starts: whether it is
    the first of its input. deaths: of workers that had it, places: the numbers of these.
    """

    number: int
    source: int
    first: int
    total: int
    rows: int
    digest: str
    share: float
    records: list[bytes] | bytes = field(repr=False)
    starts: bool = False
    deaths: list[str] = field(default_factory=list)
    places: set[int] = field(default_factory=set)


def expanded(names: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The files of names and patterns, those of a pattern in the order of their names. Raises
    FileNotFoundError, ValueError for no name, for a name twice or not in UTF-8, and for a pipe."""
    found: list[str] = []
    for name in [os.fspath(each) for each in names]:
        some = sorted(glob.glob(name, recursive=True)) if is_pattern(name) else [name]
        found += [each for each in some if os.path.isfile(each)] if is_pattern(name) else some
        if not some:
            raise FileNotFoundError(2, "no file has such a name", name)
    if not found:
        raise ValueError("a job needs files to read: name them with --input")
    for name in found:
        check_name(name)
        if os.path.exists(name) and not os.path.isfile(name):
            raise ValueError(f"{name} is no file: a job reads its inputs again where it is resumed")
        with open(name, "rb"):  # which says what is wrong with it
            pass
    twice = [name for name in found if found.count(name) > 1] if len(found) < 1000 else []
    if twice:
        raise ValueError(f"{twice[0]} is named twice")
    return found


def check_name(name: str) -> None:
    """Raises ValueError for a name that the files of a job's folder, which are UTF-8, cannot
    hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of the file {name!r} is not UTF-8: rename it") from None


def is_pattern(name: str) -> bool:
    return glob.has_magic(name) and not os.path.exists(name)


def cut(
    sources: Sequence[Source], layout: Layout, rows: int, finished: Sequence[int]
) -> Iterator[Shard]:
    """The shards of all inputs. finished: numbers of those whose rows nobody needs."""
    whole = sum(source.size for source in sources) or 1
    known = set(finished)
    number = total = 0
    for index, source in enumerate(sources):
        done = 0
        while number + done in known:
            done += 1
        first, before = 0, 0
        for block in blocks(source.path, source.type, layout, rows, done):
            share = (block.position - before) / whole
            place = (number, index, first, total, block.rows, block.digest, share, block.records)
            yield Shard(*place, starts=first == 0)
            number, first, total = number + 1, first + block.rows, total + block.rows
            before = block.position
