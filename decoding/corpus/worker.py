"""A worker's process: opens the task once, and answers shard after shard."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from decoding.common.signs import read_back
from decoding.corpus.folder import Finished
from decoding.corpus.formats.compressed import writing
from decoding.corpus.formats.layout import Layout
from decoding.corpus.formats.rows import Row, rows_of
from decoding.corpus.formats.writing import Output, write
from decoding.corpus.isolation import Isolated
from decoding.corpus.row_task import Answer, Answerer, Failed, RowTask
from decoding.corpus.shards import Shard

USERS_FAULT = (ValueError, TypeError, OSError, NotImplementedError, ImportError)


@dataclass(frozen=True)
class Setup:
    """What all workers of a job are told. inputs: their names; folder: the job's. workers:
    that share the machine."""

    task: RowTask
    layout: Layout
    output: Output
    inputs: tuple[str, ...]
    folder: Path
    workers: int


class Ready(NamedTuple):
    """The task is open: the worker takes shards."""

    warnings: tuple[str, ...]


class Progressed(NamedTuple):
    """rows: of the shard that have an answer."""

    rows: int


class Written(NamedTuple):
    """A shard's files are on the disk. failed: the file of its errors, None where there are
    none."""

    shard: Finished
    path: Path
    failed: Path | None
    warnings: tuple[str, ...]


class Ended(NamedTuple):
    """The worker ends. is_users: the job cannot go on; else the worker alone cannot."""

    reason: str
    is_users: bool


def serve(connection: Connection, setup: Setup, device: str) -> None:
    """Answers shards until the connection closes or something fails."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        with warned() as said:
            answerer = Isolated(setup.task.open(device, setup.workers))
        connection.send(Ready(tuple(said)))
        while True:
            connection.send(answered(setup, answerer, connection.recv(), connection.send))
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, OSError) and error.strerror:
            reason = f"{error.filename or setup.folder}: {error.strerror}"
        elif isinstance(error, USERS_FAULT):
            reason = " ".join(str(error).split())
        connection.send(Ended(reason, isinstance(error, USERS_FAULT)))


def end_with_parent() -> None:
    """Nobody asks for the work any more, and another job may need the device."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """The warnings that are given in a context, each once, at its end."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
        found += dict.fromkeys(str(each.message) for each in caught)


def answered(
    setup: Setup, answerer: Answerer, shard: Shard, send: Callable[[Progressed], None]
) -> Written:
    rows = rows_of(shard.records, setup.layout)
    answers: list[Answer | Failed] = []
    asked: dict[int, Any] = {}  # by the number of a row
    for number, row in enumerate(rows):
        answers.append(Failed(row.reason or "no answer"))
        if row.reason is None:
            try:
                asked[number] = answerer.read(readable(row, setup.layout))
            except ValueError as error:
                answers[number] = Failed(str(error))
    done, sound = 0, list(asked)
    with warned() as said:
        numbers = [shard.total + number for number in sound]
        for group in answerer(list(asked.values()), numbers):
            for answer in group:
                answers[sound[done]] = answer
                done += 1
            send(Progressed(done))
    if done != len(sound):
        raise RuntimeError(f"the task gave {done} answers for {len(sound)} rows")
    return written(setup, shard, rows, answers)._replace(warnings=tuple(said))


def readable(row: Row, layout: Layout) -> dict[str, Any]:
    """The fields of a row, with what the signs in cells of TSV stand for."""
    if layout.kind == "tsv" and layout.signs:
        return {name: read_back(cell) for name, cell in row.fields.items()}
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
    write(str(path), setup.output, rows, given, shard.records, is_first)
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
