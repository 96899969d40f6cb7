"""The contenders of a comparison at work side by side: who fails is left out, the others go on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from decoding.compare.engines import Contender
from decoding.compare.task import Task
from decoding.compare.worker import Allowance, EngineFailed, Worker

T = TypeVar("T")


class Lineup:
    """Use as a context; all processes end with it.

    contenders: on one device. text: they are given texts, not ids.
    workers: who is at work. reasons: why somebody is not. failures: the exceptions behind them.
    """

    def __init__(
        self,
        task: Task,
        contenders: Sequence[Contender],
        allowance: Allowance,
        *,
        text: bool = False,
    ) -> None:
        self.task, self.contenders, self.allowance, self.text = task, contenders, allowance, text
        self.device = contenders[0].settings.device
        self.workers: dict[Contender, Worker] = {}
        self.reasons: dict[Contender, str] = {}
        self.failures: list[EngineFailed] = []
        self._hopeless: dict[Contender, str] = {}  # could not be loaded: not tried again
        self._folder = tempfile.TemporaryDirectory()
        self._converted: dict[Contender, Path] = {}

    def start(self, beams: int, *, fresh: bool) -> None:
        """Starts and loads who is not at work yet. fresh: all of them anew."""
        if fresh:
            self.close()
        self.reasons = dict(self._hopeless)
        new = []
        for contender in self.contenders:
            if not contender.engine.serves(beams):
                self.drop(contender, f"does not search with {beams} beams")
            elif contender not in self.reasons and contender not in self.workers:
                new.append(contender)
                self._start(contender)
        for contender in new:  # nobody takes memory of a GPU while another measures what it takes
            self.ask(contender, Worker.ready)
        for contender in new:
            if self.ask(contender, Worker.load) is None:
                self._hopeless[contender] = self.reasons[contender]

    def ask(self, contender: Contender, request: Callable[[Worker], T]) -> T | None:
        """None where the contender fails, or is not at work."""
        if contender not in self.workers:
            return None
        try:
            return request(self.workers[contender])
        except EngineFailed as failure:
            self.failures.append(failure)
            self.drop(contender, failure.reason)
            return None

    def each(self, request: Callable[[Worker], T]) -> dict[Contender, T]:
        """The answers of those who do not fail."""
        found = {contender: self.ask(contender, request) for contender in [*self.workers]}
        return {contender: answer for contender, answer in found.items() if answer is not None}

    def drop(self, contender: Contender, reason: str) -> None:
        self.reasons[contender] = reason
        if contender in self.workers:
            self.workers.pop(contender).close(kill=True)

    def _start(self, contender: Contender) -> None:
        if contender.engine.converts and contender not in self._converted:
            folder = Path(self._folder.name) / str(len(self._converted))
            # In a process of its own, whose memory does not count.
            self.workers[contender] = Worker(contender, self.task, self.allowance)
            if self.ask(contender, lambda worker: worker.convert(folder)) is None:
                return
            self.workers.pop(contender).close()
            self._converted[contender] = folder
        self.workers[contender] = Worker(
            contender,
            self.task,
            self.allowance,
            text=self.text,
            converted=self._converted.get(contender),
        )

    def close(self, kill: bool = False) -> None:
        for contender in [*self.workers]:
            self.workers.pop(contender).close(kill)

    def __enter__(self) -> Lineup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(kill=error is not None)
        self._folder.cleanup()
