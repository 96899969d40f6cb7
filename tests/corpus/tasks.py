"""A task for tests of what surrounds a model: it writes texts in capitals."""

from __future__ import annotations

import atexit
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding.corpus.row_task import Answer, Failed, Fields


class DeviceError(RuntimeError):
    """What decoding.Error is where a GPU has gone."""


@dataclass(frozen=True)
class Capitals:
    """Texts ask for more than capitals: "bad ..." makes the call fail, "sick ..." as if the device
    did, "odd ..." warns, "kill ..." kills the worker, "die once FILE" where FILE is not there yet.

    seconds: of each row. log: a file that says of which rows calls were begun. gone: a device that
    cannot be opened, broken: one that can, where every call fails; vanishes: a file whose presence
    does that to all. group: rows that are answered together. leaves: a file that says when workers
    begin to end, and when they have. is_shared: threads may ask at once.
    """

    key: str = "text"
    column: str | None = None
    seconds: float = 0.0
    gone: str = ""
    broken: str = ""
    vanishes: str = ""
    group: int = 4
    log: str = ""
    leaves: str = ""
    version: Any = 1
    is_shared: bool = False

    answers = {"capitals": "text", "length": "count"}
    cells = ("capitals",)
    signs = False

    def identity(self) -> dict[str, Any]:
        return {"capitals": self.version}

    def open(self, device: str, workers: int) -> Capitals:
        if device == self.gone:
            raise DeviceError(f"{device} has fallen off the bus")
        if self.leaves:
            atexit.register(leave, self.leaves)
        return replace(self, vanishes=os.devnull) if device == self.broken else self

    def read(self, row: Fields) -> str:
        text = row.get(self.key)
        if not isinstance(text, str):
            raise ValueError(f"{self.key!r} must be a string, got {type(text).__name__}")
        return text

    def __call__(
        self, given: Sequence[str], numbers: Sequence[int]
    ) -> Iterator[list[Answer | Failed]]:
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{numbers[0]} {len(numbers)}\n")
        for i in range(0, len(given), self.group):
            some = given[i : i + self.group]
            time.sleep(self.seconds * len(some))
            yield [self._answer(text) for text in some]

    def _answer(self, text: str) -> Answer:
        word, _, rest = text.partition(" ")
        if self.vanishes and Path(self.vanishes).exists():
            raise DeviceError("the device has vanished")
        if word == "bad":
            raise ValueError(f"{text!r} is too long")
        if word == "sick":
            raise DeviceError("the model's numbers are not finite")
        if word == "odd":
            warnings.warn(f"{text!r} is odd", stacklevel=2)
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text.startswith("die once ") and not Path(rest.removeprefix("once ")).exists():
            Path(rest.removeprefix("once ")).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"capitals": text.upper(), "length": len(text)}


@dataclass(frozen=True)
class Where(Capitals):
    """Answers with the worker's device, and the GPUs that it sees."""

    device: str = ""

    def open(self, device: str, workers: int) -> Where:
        return replace(self, device=device)

    def _answer(self, text: str) -> Answer:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        return {"capitals": f"{self.device} of {seen}", "length": 0}


@dataclass(frozen=True)
class AtOnce(Capitals):
    """Answers with the most calls that there have been at once, and waits a moment for two."""

    calls = {"now": 0, "most": 0}

    def __call__(
        self, given: Sequence[str], numbers: Sequence[int]
    ) -> Iterator[list[Answer | Failed]]:
        self.calls["now"] += 1
        self.calls["most"] = max(self.calls.values())
        end = time.monotonic() + self.seconds
        while self.calls["most"] < 2 and time.monotonic() < end:
            time.sleep(0.01)
        yield [{"capitals": str(self.calls["most"]), "length": 0} for _ in given]
        self.calls["now"] -= 1


def leave(path: str) -> None:
    for word in ("leaves", "left"):
        with open(path, "a") as file:
            file.write(f"{word}\n")
        time.sleep(0.5)
