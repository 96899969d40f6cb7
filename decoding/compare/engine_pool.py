"""Runs the engines of a comparison side by side; one that fails is left out, the others go on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from decoding.compare.engines import EngineConfig
from decoding.compare.task import Task
from decoding.compare.worker import EngineFailed, ResourceLimits, Worker

T = TypeVar("T")


class EnginePool:
    """Processes of engines on one device. Use it as a context manager, which ends them all.

    configs: the engines. text: they are given texts, not ids. workers: the running ones. reasons:
    the reason why another is not running. failures: the exceptions that stopped engines.
    """

    def __init__(
        self,
        task: Task,
        configs: Sequence[EngineConfig],
        limits: ResourceLimits,
        *,
        text: bool = False,
    ) -> None:
        self.task, self.configs, self.limits, self.text = task, configs, limits, text
        self.device = configs[0].settings.device
        self.workers: dict[EngineConfig, Worker] = {}
        self.reasons: dict[EngineConfig, str] = {}
        self.failures: list[EngineFailed] = []
        self._unloadable: dict[EngineConfig, str] = {}  # failed to load: not tried again
        self._folder = tempfile.TemporaryDirectory()
        self._converted: dict[EngineConfig, Path] = {}

    def start(self, beams: int, *, fresh: bool) -> None:
        """Starts and loads the engines that are not running. fresh: restarts those that are."""
        if fresh:
            self.close()
        self.reasons = dict(self._unloadable)
        new = []
        for config in self.configs:
            if not config.engine.serves(beams):
                self.drop(config, f"does not search with {beams} beams")
            elif config not in self.reasons and config not in self.workers:
                new.append(config)
                self._start(config)
        for config in new:  # no engine allocates while another measures the GPU's free memory
            self.ask(config, Worker.ready)
        for config in new:
            if self.ask(config, Worker.load) is None:
                self._unloadable[config] = self.reasons[config]

    def ask(self, config: EngineConfig, request: Callable[[Worker], T]) -> T | None:
        """The answer of one engine; None where it fails or is not running."""
        if config not in self.workers:
            return None
        try:
            return request(self.workers[config])
        except EngineFailed as failure:
            self.failures.append(failure)
            self.drop(config, failure.reason)
            return None

    def each(self, request: Callable[[Worker], T]) -> dict[EngineConfig, T]:
        """The answers of the engines that do not fail."""
        found = {config: self.ask(config, request) for config in [*self.workers]}
        return {config: answer for config, answer in found.items() if answer is not None}

    def drop(self, config: EngineConfig, reason: str) -> None:
        self.reasons[config] = reason
        if config in self.workers:
            self.workers.pop(config).close(kill=True)

    def _start(self, config: EngineConfig) -> None:
        if config.engine.converts and config not in self._converted:
            folder = Path(self._folder.name) / str(len(self._converted))
            # In a process of its own, whose memory does not count.
            self.workers[config] = Worker(config, self.task, self.limits)
            if self.ask(config, lambda worker: worker.convert(folder)) is None:
                return
            self.workers.pop(config).close()
            self._converted[config] = folder
        self.workers[config] = Worker(
            config,
            self.task,
            self.limits,
            text=self.text,
            converted=self._converted.get(config),
        )

    def close(self, kill: bool = False) -> None:
        for config in [*self.workers]:
            self.workers.pop(config).close(kill)

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(kill=error is not None)
        self._folder.cleanup()
