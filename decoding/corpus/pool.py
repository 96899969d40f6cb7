"""The worker processes of a job: started as there is work, replaced when they die."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

from decoding.common.starting import start_without_interrupts
from decoding.corpus.devices import seen_alone
from decoding.corpus.folder import Written
from decoding.corpus.shard_answers import Setup
from decoding.corpus.shards import Shard
from decoding.corpus.worker import Ended, Progressed, Ready, serve

START = "spawn"  # a fork would inherit what the caller's process has loaded
STARTS = 3  # that may fail one after the other before a worker is given up
BLAMED = 3  # shards that a worker could not finish and others could, before it is given up
GRACE = 10.0  # seconds in which a worker that is not needed any more may end


class Worker:
    """A place for a process, and the one that is there. shards: that it has in hand, by their
    numbers. failures: starts that have failed since one was good. blamed: shards that have ended it
    and that others have finished, since it has finished one."""

    def __init__(self, number: int, device: str) -> None:
        self.number, self.device = number, device
        self.shards: dict[int, Shard] = {}
        self._answered: dict[int, int] = {}  # rows of each
        self.failures = self.blamed = 0
        self.is_ready = False
        self.process: Any = None
        self.connection: Any = None

    def start(self, setup: Setup) -> None:
        spawn: Any = multiprocessing.get_context(START)
        self.connection, theirs = spawn.Pipe()
        with seen_alone(self.device) as device:
            process = spawn.Process(
                target=serve, args=(theirs, setup, device), daemon=True, name="decoding.corpus"
            )
            start_without_interrupts(process)
        self.process = process
        theirs.close()
        self.is_ready = False

    @property
    def is_given_up(self) -> bool:
        return self.failures >= STARTS or self.blamed >= BLAMED

    @property
    def rows(self) -> int:
        """That are answered, of the shards in hand."""
        return sum(self._answered.values())

    @property
    def share(self) -> float:
        """Theirs, of the bytes of all inputs."""
        each = ((self.shards[number], rows) for number, rows in self._answered.items())
        return sum(shard.share * rows / max(1, shard.rows) for shard, rows in each)

    def give(self, shard: Shard) -> None:
        """Hands over a shard. A process that has died says so when it is heard."""
        self.shards[shard.number], self._answered[shard.number] = shard, 0
        try:
            self.connection.send(shard)
        except OSError:
            pass

    def take(self, number: int) -> Shard:
        """A shard that it no longer has in hand."""
        del self._answered[number]
        return self.shards.pop(number)

    def hear(self) -> Ready | Progressed | Written | Ended:
        """What the process says next; of one that has died why it has ended."""
        try:
            said: Ready | Progressed | Written | Ended = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Ended(died(self.process.exitcode), False)
        if isinstance(said, Progressed):
            self._answered[said.number] = said.rows
        return said

    def dismiss(self, kill: bool) -> None:
        """Has the process end. kill: at once."""
        if self.process is None:
            return
        self.connection.close()
        if kill:
            self.process.kill()

    def join(self) -> None:
        """Waits for the end of a process that was dismissed."""
        if self.process is None:
            return
        self.process.join(GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process = None


# A worker, what it says, and the shards that it no longer has in hand.
Heard = tuple[Worker, Ready | Written | Ended, list[Shard]]


class Pool:
    """Workers in a context, at whose end no process is left."""

    def __init__(self, setup: Setup, devices: Sequence[str]) -> None:
        self._setup = setup
        self.workers = [Worker(number, device) for number, device in enumerate(devices)]
        self.deaths: list[str] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.dismiss(kill=kind is not None)
        for worker in self.workers:
            worker.join()

    def dismiss(self, kill: bool = False) -> None:
        """Has all processes end, side by side: with a GPU each takes a part of a second."""
        for worker in self.workers:
            worker.dismiss(kill or bool(worker.shards))

    def room(self, worker: Worker) -> int:
        """How many shards more it may have in hand. One that has ended a worker is there alone, so
        that the next end is its own."""
        if worker.is_given_up or any(shard.deaths for shard in worker.shards.values()):
            return 0
        return self._setup.in_hand - len(worker.shards)

    def idle(self) -> list[Worker]:
        """Those that could take a shard: ready ones first, with the fewest first."""
        some = [each for each in self.workers if self.room(each)]
        return sorted(some, key=lambda w: (not w.is_ready, len(w.shards), w.process is None))

    def may_take(self, worker: Worker, shard: Shard) -> bool:
        """A shard that has ended a worker goes to another one, where there is one: which of them is
        to blame nobody knows."""
        usable = {each.number for each in self.workers if not each.is_given_up}
        return worker.number not in shard.places or usable <= shard.places

    def lacks(self, shards: Sequence[Shard]) -> bool:
        """Whether workers could have more shards in hand than there are for them."""
        idle = self.idle()
        room = sum(map(self.room, idle))
        return sum(any(self.may_take(each, shard) for each in idle) for shard in shards) < room

    def assign(self, shards: list[Shard]) -> None:
        """Gives shards to workers that are ready, and starts those that the rest needs."""
        while (given := self._next_given(shards)) is not None:
            worker, index = given
            worker.give(shards.pop(index))
        free = [worker for worker in self.idle() if not worker.shards]
        coming = [worker for worker in free if worker.process is not None]
        for worker in free:
            served = all(any(self.may_take(each, shard) for each in coming) for shard in shards)
            if worker.process is None and not (served and len(coming) >= len(shards)):
                worker.start(self._setup)
                coming.append(worker)

    def _next_given(self, shards: Sequence[Shard]) -> tuple[Worker, int] | None:
        """A worker that is ready, and the index of the shard that it takes next."""
        starting = sum(each.process is not None and not each.is_ready for each in self.workers)
        waits_for_one = any(shard.deaths for shard in shards) or len(shards) <= starting
        for worker in self.idle():
            if worker.is_ready and not (worker.shards and waits_for_one):
                own = (i for i, shard in enumerate(shards) if self.may_take(worker, shard))
                if (index := next(own, None)) is not None:
                    return worker, index
        return None

    @property
    def is_working(self) -> bool:
        return any(worker.shards for worker in self.workers)

    @property
    def is_given_up(self) -> bool:
        return all(worker.is_given_up for worker in self.workers)

    def heard(self, seconds: float) -> list[Heard]:
        """What workers say within so many seconds, and all that they have said by then: shards that
        wait to be committed are so together."""
        by_connection = {
            worker.connection: worker for worker in self.workers if worker.process is not None
        }
        speaking = wait(list(by_connection), seconds)
        return [heard for each in speaking for heard in self._said_by(by_connection[each])]

    def _said_by(self, worker: Worker) -> Iterator[Heard]:
        """One that has ended has no process any more."""
        while worker.process is not None and worker.connection.poll():
            said, shards = worker.hear(), list[Shard]()
            if isinstance(said, Progressed):
                continue
            if isinstance(said, Ready):
                worker.is_ready, worker.failures = True, 0
            elif isinstance(said, Written):
                shards = [worker.take(said.shard.number)]
                self._has_finished(worker, shards[0])
            else:
                worker.failures += not worker.is_ready
                worker.is_ready = False
                worker.dismiss(kill=True)
                worker.join()
                shards = [worker.take(number) for number in list(worker.shards)]
            yield worker, said, shards

    def _has_finished(self, worker: Worker, shard: Shard) -> None:
        worker.blamed = 0
        for number in shard.places - {worker.number}:
            self.workers[number].blamed += 1


def died(code: int) -> str:
    """Describes the exit code of a process that ended by itself."""
    if code >= 0:
        return f"the worker ended with code {code}"
    hint = " (was there too little memory?)" if code == -signal.SIGKILL else ""
    return f"the worker died of {signal.Signals(-code).name}{hint}"
