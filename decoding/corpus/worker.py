"""A worker's process: opens the task once, and answers shards, two at a time."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from decoding.corpus.folder import Written
from decoding.corpus.isolation import Isolated
from decoding.corpus.shard_answers import Setup, answered
from decoding.corpus.shards import Shard

USERS_FAULT = (ValueError, TypeError, OSError, NotImplementedError, ImportError)


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
    parent, warned = Parent(connection), WarningLog()
    warned.listen()
    with parent.reporting_errors(setup.folder):
        answerer = Isolated(setup.task.open(device, setup.workers))
        parent.send(Ready(warned.taken()))
        more = [
            threading.Thread(target=answer_shards, args=(setup, answerer, parent, warned))
            for _ in range(1, setup.in_hand)
        ]
        for thread in more:
            thread.start()
        answer_shards(setup, answerer, parent, warned)
        for thread in more:
            thread.join()


def answer_shards(setup: Setup, answerer: Isolated, parent: Parent, warned: WarningLog) -> None:
    """One after the other. What another thread reads and writes meanwhile costs this one nothing,
    and its rows fill the device where those of this shard no longer do."""
    warned.listen()
    with parent.reporting_errors(setup.folder):
        while True:
            shard = parent.receive()
            reached = partial(parent.reached, shard.number)
            found = answered(setup, answerer, shard, reached)
            parent.send(found._replace(warnings=warned.taken()))


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

    def reached(self, number: int, rows: int) -> None:
        self.send(Progressed(number, rows))

    @contextlib.contextmanager
    def reporting_errors(self, folder: Path) -> Iterator[None]:
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


class WarningLog:
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
