"""The interface of an engine: load a directory, generate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from decoding.compare.task import Ids, Search, Task


@dataclass(frozen=True)
class Settings:
    """Settings for loading an engine. device: "cpu" or "cuda"; threads: of the CPU. converted: the
    directory of the library's own form of the model, if it needs one."""

    device: str
    dtype: str
    threads: int
    converted: Path | None = None


@dataclass(frozen=True)
class EngineConfig:
    """An engine and the settings that it is loaded with."""

    engine: type[Engine]
    settings: Settings

    def __str__(self) -> str:
        return f"{self.engine.name} {self.settings.dtype} {self.settings.device}"


@dataclass(frozen=True)
class Answer:
    """The best row of each sentence: its new tokens, perhaps with an end and padding after them,
    and in beam search, if asked for, its score."""

    tokens: list[list[int]]
    scores: list[float]


class Engine(ABC):
    """A loaded model. `libraries` are imported before its memory is counted, `text_libraries` too
    where it is given text.

    dtypes: the types of weights that it computes with, by device; a type that it loads but computes
    in another is not among them.
    version: of its libraries. isa: instruction set, "" where the library does not tell. nodes: of a
    step's CUDA graph, 0 without one.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    text_libraries: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[dict[str, tuple[str, ...]]]
    converts: ClassVar[bool] = False
    version: str
    isa: str = ""
    nodes: int = 0

    @abstractmethod
    def __init__(self, task: Task, settings: Settings) -> None: ...

    @abstractmethod
    def prepare(self, ids: Ids, search: Search) -> None:
        """Brings the input of the next calls into the library's own form."""

    @abstractmethod
    def generate(self) -> Answer: ...

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, with the special tokens of a source or prompt."""

    @abstractmethod
    def decode(self, rows: Ids) -> list[str]: ...

    @classmethod
    def convert(cls, task: Task, dtype: str, directory: Path) -> None:
        """Writes the library's own form of the model; asked for only where `converts`."""
        raise NotImplementedError(f"{cls.name} reads the model as it is")

    @classmethod
    def serves(cls, beams: int) -> bool:
        """Whether the engine can search with so many beams."""
        return True
