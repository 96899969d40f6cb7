"""A worker's process: opens the task once, and answers shards, two at a time."""

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
from decoding.corpus.folder import Finished, Written
from decoding.corpus.formats.compressed import writing
from decoding.corpus.formats.layout import Layout
from decoding.corpus.formats.rows import Row, rows_of
from decoding.corpus.formats.writing import Output, write
from decoding.corpus.isolation import Isolated
from decoding.corpus.row_task import Answer, Failed, RowTask
from decoding.corpus.shards import Shard

USERS_FAULT = (ValueError, TypeError, OSError, NotImplementedError, ImportError)


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


class Ready(NamedTuple):
    """The task is open: the worker takes shards."""

    warnings: tuple[str, ...]


class Progressed(NamedTuple):
    """rows: of the shard of this number that have an answer."""

    number: int
    rows: int


class Ended(NamedTuple):
    """The worker ends. is_users: the job cannot go on; else the worker alone cannot."""

    reason: str
    is_users: bool


def serve(connection: Connection, setup: Setup, device: str) -> None:
    """Answers shards, each in a thread of its own, until the connection closes or something
    fails."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    parent, said = Parent(connection), Said()
    said.listen()
    with parent.told_of_errors(setup.folder):
        answerer = Isolated(setup.task.open(device, setup.workers))
        parent.send(Ready(said.taken()))
        more = [
            threading.Thread(target=answer_shards, args=(setup, answerer, parent, said))
            for _ in range(1, setup.in_hand)
        ]
        for thread in more:
            thread.start()
        answer_shards(setup, answerer, parent, said)
        for thread in more:
            thread.join()


def answer_shards(setup: Setup, answerer: Isolated, parent: Parent, said: Said) -> None:
    """One after the other. What another thread reads and writes meanwhile costs this one nothing,
    and its rows fill the device where those of this shard no longer do."""
    said.listen()
    with parent.told_of_errors(setup.folder):
        while True:
            found = answered(setup, answerer, parent.receive(), parent.send)
            parent.send(found._replace(warnings=said.taken()))


class Parent:
    """The job's process, of which the threads of a worker's take turns."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._receiving, self._sending = threading.Lock(), threading.Lock()

    def receive(self) -> Shard:
        with self._receiving:
            shard: Shard = self._connection.recv()
            return shard

    def send(self, message: Ready | Progressed | Written | Ended) -> None:
        with self._sending:
            self._connection.send(message)

    @contextlib.contextmanager
    def told_of_errors(self, folder: Path) -> Iterator[None]:
        """A context that ends without a word where the connection does."""
        try:
            yield
        except (EOFError, ConnectionError):
            pass
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            if isinstance(error, OSError) and error.strerror:
                reason = f"{error.filename or folder}: {error.strerror}"
            elif isinstance(error, USERS_FAULT):
                reason = " ".join(str(error).split())
            with contextlib.suppress(ConnectionError):
                self.send(Ended(reason, isinstance(error, USERS_FAULT)))


class Said:
    """What a process warns of from now on, each once. A thread that listens is told what it has
    warned of itself, and what threads did that nobody listens in."""

    def __init__(self) -> None:
        self._own, self._others = threading.local(), dict[str, None]()
        warnings.simplefilter("always")
        warnings.showwarning = self._keep

    def listen(self) -> None:
        self._own.found = dict[str, None]()

    def taken(self) -> tuple[str, ...]:
        """Since the last time."""
        found = tuple(self._own.found | self._others)
        self._own.found.clear()
        self._others.clear()
        return found

    def _keep(self, message: Warning | str, *_: Any, **__: Any) -> None:
        getattr(self._own, "found", self._others)[str(message)] = None


def end_with_parent() -> None:
    """Nobody asks for the work any more, and another job may need the device."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def answered(
    setup: Setup, answerer: Isolated, shard: Shard, send: Callable[[Progressed], None]
) -> Written:
    """A shard's answers, in files. send: is told how far it is."""
    rows = rows_of(shard.records, setup.layout)
    with answerer.turn:
        answers = answers_to(rows, setup, answerer, shard, send)
    return written(setup, shard, rows, answers)


def answers_to(
    rows: Sequence[Row],
    setup: Setup,
    answerer: Isolated,
    shard: Shard,
    send: Callable[[Progressed], None],
) -> list[Answer | Failed]:
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
    numbers = [shard.total + number for number in sound]
    for group in answerer(list(asked.values()), numbers):
        for answer in group:
            answers[sound[done]] = answer
            done += 1
        send(Progressed(shard.number, done))
    if done != len(sound):
        raise RuntimeError(f"the task gave {done} answers for {len(sound)} rows")
    return answers


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
