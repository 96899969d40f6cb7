"""A provider in a process of its own, with its clients: no library's threads, allocator or
interpreter is another's."""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.online import PROVIDERS, Provider
from decoding.compare.engines import Settings
from decoding.compare.task import Task

Result = TypeVar("Result")

_provider: Provider  # of this process


class Host:
    """A context manager. version: of the provider's libraries."""

    def __init__(self, name: str, model: Path, settings: Settings, rows: int | None) -> None:
        self.given = (name, model, settings, rows)

    def __enter__(self) -> Host:
        spawn = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, mp_context=spawn)
        try:
            self.version = self.pool.submit(load, *self.given).result()
        except BaseException:
            self.pool.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.submit(close).result()
        self.pool.shutdown()

    def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """function(provider, *arguments) there. Raises what it raises."""
        return self.pool.submit(call, function, arguments).result()


def load(name: str, model: Path, settings: Settings, rows: int | None) -> str:
    global _provider
    warnings.simplefilter("ignore")  # libraries' advice would hide the rows
    kind, task = PROVIDERS[name], Task.read(model)
    with tempfile.TemporaryDirectory() as folder:
        if kind.engine.converts:
            settings = replace(settings, converted=Path(folder) / "converted")
            kind.engine.convert(task, settings.dtype, Path(folder) / "converted")
        engine: Any = kind.engine(task, settings)
    _provider = kind(engine, settings.device, rows)
    gc.collect()
    gc.freeze()  # else a collection, which looks through all of torch, stops every client for 0.2 s
    return _provider.version(engine)


def call(function: Callable[..., Result], arguments: tuple[object, ...]) -> Result:
    return function(_provider, *arguments)


def close() -> None:
    _provider.close()
