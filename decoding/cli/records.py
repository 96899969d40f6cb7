"""The records of an input: plain lines, lines of TSV, and JSON lines; and batches of them."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from decoding.cli.messages import counted

T = TypeVar("T")

FORMATS = ("lines", "tsv", "json")


class Record(NamedTuple):
    """A line of the input.

    where: its file and number. text: what the command reads: a str, but for JSON's messages.
    columns: of a TSV line. fields: of a JSON line, of TSV the columns by their numbers. Each form
    is there for each input, since the output may have another.
    """

    where: str
    text: Any
    columns: list[str]
    fields: dict[str, Any]


def tsv_record(line: str, column: int, where: str) -> Record:
    columns = line.split("\t")
    if not line:  # stays empty
        columns = [""] * column
    if len(columns) < column:
        raise ValueError(f"{where} has {len(columns)} columns, and column {column} is asked for")
    fields = {str(number): cell for number, cell in enumerate(columns, 1)}
    return Record(where, columns[column - 1], columns, fields)


def json_record(line: str, key: str, where: str, kinds: tuple[type, ...]) -> Record:
    """An object with `key`, or its value alone; an empty line is an empty text."""
    try:
        value = json.loads(line) if line.strip() else ""
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds half of a UTF-16 surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where} is no JSON: {error} (for plain lines leave --input-format out)"
        ) from None
    fields = value if isinstance(value, dict) else {key: value}
    text = fields.get(key)
    if not isinstance(text, kinds):
        names = "a string or a list" if list in kinds else "a string"
        raise ValueError(f"{where} must be {names}, or an object in which {key!r} is one")
    return Record(where, text, [text if isinstance(text, str) else line], fields)


def texts_of(lists: Iterable[list[Record]]) -> Iterator[str]:
    return (record.text for records in lists for record in records)


def paired(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Raises ValueError where one side has fewer lines."""
    for count, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
        if source is None or target is None:
            short = "source" if source is None else "target"
            raise ValueError(
                f"the {short} has only {counted(count, 'line')}: it must have as many as the other"
            )
        yield source, target


def kept(lists: Iterable[list[Record]], pending: deque[Record]) -> Iterator[list[Record]]:
    """The records, which are put into `pending` when they are read, until they are answered."""
    for records in lists:
        pending.extend(records)
        yield records


def batches(
    items: Iterable[T], size: Callable[[T], int], most: int, ready: Callable[[], bool]
) -> Iterator[list[T]]:
    """Successive items whose sizes together are `most` or a little more; fewer where no other item
    is there."""
    batch: list[T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= most or not ready():
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
