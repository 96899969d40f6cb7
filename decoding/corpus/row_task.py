"""What a job asks of its task: to be opened in a worker, and to answer rows there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Fields = Mapping[str, Any]
Answer = dict[str, Any]


class Failed(str):
    """Why a row has no answer."""


class Answerer(Protocol):
    """Answers rows in a worker's process."""

    @property
    def is_shared(self) -> bool:
        """Whether two threads may ask at once. A worker has two shards in hand: where it may, the
        rows of the second follow those of the first without a gap, else they wait for their end."""

    def read(self, row: Fields) -> Any:
        """What a row asks for. Raises ValueError where it cannot be asked for."""

    def __call__(
        self, given: Sequence[Any], numbers: Sequence[int]
    ) -> Iterator[Sequence[Answer | Failed]]:
        """The answers to what rows ask for, in their order, some at a time. numbers: of the rows in
        the whole job, from 0.

        An exception is about the rows that have no answer yet: they are asked for again, by halves,
        until the row that is to blame is alone.
        """


class RowTask(Protocol):
    """What a job needs to know of its task. It is pickled, and opened in each worker."""

    @property
    def key(self) -> str:
        """The column that plain lines are."""

    @property
    def answers(self) -> dict[str, str]:
        """The columns of an answer, and the kind of each: text, number, count, vector, pairs or
        any, which only JSON can hold. A row that failed has None in the first."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Those that text, TSV and CSV have."""

    @property
    def signs(self) -> bool:
        """Whether text and TSV have newlines of an answer as signs, not as spaces."""

    def identity(self) -> dict[str, Any]:
        """All that changes answers, as JSON can hold it. A job of another identity is another."""

    def open(self, device: str, workers: int) -> Answerer:
        """device: as the process knows it, which sees its own GPU alone, as cuda:0. workers: that
        share the machine. Raises ValueError, OSError, TypeError or NotImplementedError for
        mistakes of the user, which end the job; another exception is the device's."""
