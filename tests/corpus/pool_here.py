"""In place of a job's processes: one worker, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.corpus.folder import Written
from decoding.corpus.isolation import Isolated
from decoding.corpus.pool import Worker
from decoding.corpus.shard_answers import Setup, answered
from decoding.corpus.shards import Shard


class Interrupt(Exception):
    """The job ends in the middle."""


class PoolHere:
    """stop_after: shards, then Interrupt."""

    is_given_up = False

    def __init__(self, setup: Setup, devices: Sequence[str], stop_after: int | None = None) -> None:
        self.workers = [Worker(0, devices[0])]
        self.deaths: list[str] = []
        self._setup, self._left = setup, stop_after
        self._answerer = Isolated(setup.task.open(devices[0], 1))
        self._shard: Shard | None = None

    def __enter__(self) -> PoolHere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def dismiss(self) -> None:
        pass

    @property
    def is_working(self) -> bool:
        return self._shard is not None

    def lacks(self, waiting: Sequence[Shard]) -> bool:
        return not waiting and not self.is_working

    def assign(self, waiting: list[Shard]) -> None:
        self._shard = waiting.pop() if waiting else None

    def heard(self, seconds: float) -> list[tuple[Worker, Written, list[Shard]]]:
        if self._left == 0:
            raise Interrupt
        shard, self._shard = self._shard, None
        assert shard is not None
        self._left = None if self._left is None else self._left - 1
        written = answered(self._setup, self._answerer, shard, lambda _: None)
        return [(self.workers[0], written, [shard])]
