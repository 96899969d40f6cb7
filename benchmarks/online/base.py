"""The interface of what serves requests, the request and the reply. Times are perf_counter()'s."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from decoding.compare.engines import Engine


@dataclass(frozen=True)
class Job:
    """What a client asks for. new: exactly so many new tokens, or, with `ends`, at most: then the
    model's own end token ends it. beams: 1 is greedy search, or with `sample` sampling."""

    ids: Sequence[int]
    new: int
    beams: int = 1
    sample: bool = False
    ends: bool = False


class Reply:
    """What came for a job, and when. Its provider writes it from one thread.

    sent: when the client had to send it; late: seconds by which it was later. deliveries: (time,
    tokens) of each piece that came, and tokens: those of all. finished: infinite until all has
    come. error: "" unless it failed.
    """

    def __init__(self, job: Job, sent: float | None = None) -> None:
        self.job = job
        self.sent = time.perf_counter() if sent is None else sent
        self.late = max(0.0, time.perf_counter() - self.sent)
        self.deliveries: list[tuple[float, int]] = []
        self.tokens = 0
        self.finished = math.inf
        self.error = ""
        self.done = threading.Event()

    def take(self, count: int, when: float | None = None) -> None:
        if count > 0:
            self.deliveries.append((time.perf_counter() if when is None else when, count))
            self.tokens += count

    def finish(self) -> None:
        """After the last token. A wrong number of tokens is a failure."""
        if not self.job.ends and self.tokens != self.job.new:
            self.fail(f"{self.tokens} tokens came for a request of {self.job.new}")
            return
        self.finished = time.perf_counter()
        self.done.set()

    def fail(self, error: object) -> None:
        self.error = str(error)
        self.done.set()

    def ttft(self, now: float) -> float:
        """Seconds to the first token; where none has come, those waited until `now`."""
        return (self.deliveries[0][0] if self.deliveries else now) - self.sent

    def e2e(self, now: float) -> float:
        """Seconds to the end, or until `now`."""
        return min(self.finished, now) - self.sent

    @property
    def tpot(self) -> float:
        """Mean seconds from token to token after the first; 0 for an answer in one piece."""
        times = [when for when, _ in self.deliveries]
        return (times[-1] - times[0]) / max(1, self.tokens - 1)

    def gaps(self, begin: float = -math.inf, end: float = math.inf) -> list[float]:
        """Seconds between one piece and the next, of those that came between two times."""
        times = [when for when, _ in self.deliveries if begin <= when <= end]
        return [after - before for before, after in pairwise(times)]


class Provider(ABC):
    """A loaded engine (of decoding.compare) that serves requests from threads of its own.

    engine: the class of `decoding.compare.engines` that loads the model. static: computes batches
    that nobody joins, so that requests which are all there come best sorted by length.
    """

    name: ClassVar[str]
    engine: ClassVar[type[Engine]]
    static: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, engine: Any, device: str, rows: int | None) -> None:
        """device: "cpu" or "cuda". rows: that are computed at once, a beam each; None: as many as
        the provider likes."""

    def version(self, engine: Any) -> str:
        """Of the libraries that serve."""
        found: str = engine.version
        return found

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        """Whether it can do such a job."""
        return True

    @abstractmethod
    def submit(self, reply: Reply, stream: bool) -> None:
        """Takes a request and returns; the reply is written later. stream: piece by piece, if the
        provider can; else in one piece."""

    def submit_all(self, replies: Sequence[Reply]) -> None:
        """Takes requests of one search, all at once if the provider can."""
        for reply in replies:
            self.submit(reply, stream=False)

    @abstractmethod
    def cancel(self) -> None:
        """Drops what it has not yet answered; those replies are not written to the end."""

    @abstractmethod
    def close(self) -> None: ...


def new_tokens(row: Sequence[int], job: Job, ends: Sequence[int]) -> int:
    """The new tokens of a row that may have padding after its end, the end token counted."""
    if not job.ends:
        return min(len(row), job.new)
    return next((i for i, token in enumerate(row, 1) if token in ends), len(row))
