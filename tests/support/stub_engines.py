"""Engines for tests of comparisons: one that works, and one for each way to fail.

They are imported by the processes that run them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from decoding.compare.engines import Answer, Engine, Settings
from decoding.compare.task import Ids, Search, Task


class Echo(Engine):
    """Says the last token of its input over and over; in beam search of score -1."""

    name = "echo"
    libraries: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[dict[str, tuple[str, ...]]] = {"cpu": ("float32",), "cuda": ()}
    version = "echo 1"

    def __init__(self, task: Task, settings: Settings) -> None:
        pass

    def prepare(self, ids: Ids, search: Search) -> None:
        self.ids, self.search = ids, search

    def generate(self) -> Answer:
        scores = [-1.0] * len(self.ids) if self.search.scores else []
        return Answer([[row[-1]] * self.search.most for row in self.ids], scores)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, rows: Ids) -> list[str]:
        return ["".join(map(chr, row)) for row in rows]


class Raises(Echo):
    name = "raises"

    def generate(self) -> Answer:
        raise ValueError("no\nsuch thing")


class Dies(Echo):
    name = "dies"

    def generate(self) -> Answer:
        os._exit(3)


class Hangs(Echo):
    name = "hangs"

    def generate(self) -> Answer:
        time.sleep(600)
        raise AssertionError("nobody waits so long")


class Eats(Echo):
    name = "eats"

    def generate(self) -> Answer:
        eaten = []
        for _ in range(100):
            eaten.append(b"x" * (50 << 20))
            time.sleep(0.01)
        raise AssertionError("nobody stopped it")


class Stops(Echo):
    """Generates less than it is told to."""

    name = "stops"

    def generate(self) -> Answer:
        return Answer([row[:1] for row in super().generate().tokens], [])


class CannotLoad(Echo):
    name = "cannot-load"

    def __init__(self, task: Task, settings: Settings) -> None:
        loads = task.directory / "loads"
        loads.write_text(loads.read_text() + "x" if loads.exists() else "x")
        raise OSError("no weights")


class CannotConvert(Echo):
    name = "cannot-convert"
    converts = True

    @classmethod
    def convert(cls, task: Task, dtype: str, directory: Path) -> None:
        raise NotImplementedError("no such model")


class Converts(Echo):
    """Is given what it has converted."""

    name = "converts"
    converts = True

    def __init__(self, task: Task, settings: Settings) -> None:
        assert settings.converted is not None
        self.version = settings.converted.read_text()

    @classmethod
    def convert(cls, task: Task, dtype: str, directory: Path) -> None:
        directory.write_text(f"converted to {dtype}")
