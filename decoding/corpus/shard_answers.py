"""What a worker makes of a shard: the answers of its rows, in files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding.common.signs import read_back
from decoding.corpus.folder import Finished, Written
from decoding.corpus.formats.compressed import writing
from decoding.corpus.formats.layout import Layout
from decoding.corpus.formats.rows import Row, rows_of
from decoding.corpus.formats.writing import Output, write
from decoding.corpus.isolation import Isolated
from decoding.corpus.row_task import Answer, Failed, RowTask
from decoding.corpus.shards import Shard


@dataclass(frozen=True)
class Setup:
    """What all workers of a job are told. inputs: their names; folder: the job's. workers:
    that share the machine. in_hand: shards of each at once."""

    task: RowTask
    layout: Layout
    output: Output
    inputs: tuple[str, ...]
    folder: Path
    workers: int
    in_hand: int


def answered(
    setup: Setup, answerer: Isolated, shard: Shard, reached: Callable[[int], None]
) -> Written:
    """A shard's answers, in files. reached: is told how many rows have theirs."""
    rows = rows_of(shard.records, setup.layout)
    with answerer.lock:
        answers = answers_to(rows, setup, answerer, shard, reached)
    return written(setup, shard, rows, answers)


def answers_to(
    rows: Sequence[Row],
    setup: Setup,
    answerer: Isolated,
    shard: Shard,
    reached: Callable[[int], None],
) -> list[Answer | Failed]:
    answers: list[Answer | Failed] = []
    asked: dict[int, Any] = {}  # by the number of a row
    for number, row in enumerate(rows):
        answers.append(Failed(row.reason or "no answer"))
        if row.reason is None:
            try:
                check_names(row, setup.output)
                asked[number] = answerer.read(readable(row, setup.layout))
            except ValueError as error:
                answers[number] = Failed(str(error))
    done, sound = 0, list(asked)
    numbers = [shard.total + number for number in sound]
    for group in answerer(list(asked.values()), numbers):
        for answer in group:
            answers[sound[done]] = answer
            done += 1
        reached(done)
    if done != len(sound):
        raise RuntimeError(f"the task gave {done} answers for {len(sound)} rows")
    return answers


def check_names(row: Row, output: Output) -> None:
    """Raises ValueError for a column in whose place JSON would have the answer's."""
    both = [name for name in output.answers if name in row.fields]
    if both and output.type.kind == "json":
        raise ValueError(
            f"the row has a column {both[0]!r} already, which the answer would have: rename it"
        )


def readable(row: Row, layout: Layout) -> dict[str, Any]:
    """The fields of a row, with what the signs in its text stand for."""
    if layout.signs and layout.key in row.fields:
        return {**row.fields, layout.key: read_back(row.fields[layout.key])}
    return row.fields


def set_aside(setup: Setup, shard: Shard, reason: str) -> Written:
    """A shard all of whose rows have failed."""
    rows = rows_of(shard.records, setup.layout)
    found = written(setup, shard, rows, [Failed(reason)] * len(rows))
    return found._replace(shard=found.shard._replace(set_aside=reason))


def written(
    setup: Setup, shard: Shard, rows: Sequence[Row], answers: Sequence[Answer | Failed]
) -> Written:
    """Writes a shard under names that are this process's own."""
    path = setup.folder / f"shard-{shard.number:06d}.{os.getpid()}.tmp"
    failed = path.with_suffix(".errors.tmp")
    given = [None if isinstance(answer, Failed) else answer for answer in answers]
    is_first = shard.starts and (shard.source == 0 or setup.output.apart)
    carried = rows
    if setup.output.type.kind != "tsv":  # which needs the signs
        carried = [replace(row, fields=readable(row, setup.layout)) for row in rows]
    write(str(path), setup.output, carried, given, shard.records, is_first)
    errors, errors_checksum = sum(answer is None for answer in given), ""
    if errors:
        write_errors(failed, setup, shard, rows, answers)
        errors_checksum = hashlib.sha256(failed.read_bytes()).hexdigest()
    data = path.read_bytes()
    finished = Finished(
        number=shard.number,
        source=shard.source,
        first=shard.first,
        rows=len(rows),
        digest=shard.digest,
        size=len(data),
        checksum=hashlib.sha256(data).hexdigest(),
        errors=errors,
        tokens=sum(answer.get("tokens", 0) for answer in given if answer is not None),
        errors_checksum=errors_checksum,
    )
    return Written(finished, path, failed if errors else None, ())


def write_errors(
    path: Path, setup: Setup, shard: Shard, rows: Sequence[Row], answers: Sequence[Answer | Failed]
) -> None:
    with writing(str(path), "") as file:
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            if isinstance(answer, Failed):
                fields = {
                    "file": setup.inputs[shard.source],
                    "row": shard.first + number + 1,
                    "reason": str(answer),
                    "text": said(shard, number, row),
                }
                file.write(json.dumps(fields, ensure_ascii=False, default=str).encode() + b"\n")


def said(shard: Shard, number: int, row: Row) -> object:
    """What the input has in the place of a row."""
    if isinstance(shard.records, bytes):
        return row.fields
    return shard.records[number].decode("utf-8", "backslashreplace")
