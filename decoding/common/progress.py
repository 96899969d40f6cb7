"""How far a long call is, and ending it before it is done."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

Report = Callable[[int, Any], Any]  # (done, total or None)


class Cancelled(Exception):
    """A call has ended without a result: the event that it was given as `cancel` is set, or its
    request was cancelled."""


class Event(Protocol):
    """threading.Event, or another object with its method."""

    def is_set(self) -> bool: ...


def check_event(cancel: Any) -> None:
    """Raises TypeError for what is no event."""
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise TypeError(f"cancel must be a threading.Event, got {type(cancel).__name__}")


def check_progress(progress: Any) -> None:
    """Raises TypeError for what Progress does not take."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(
            "progress must be True, False or a function of (done, total), got "
            f"{type(progress).__name__}"
        )


def raise_if_set(cancel: Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled("the event given as `cancel` is set")


class Progress:
    """Reports how much is done: in a context, whose end closes the bar.

    progress: True for a bar of tqdm on standard error, a function of (done, total), or None or
    False for none. total: None where it is unknown. unit: what is counted. Raises TypeError for
    anything else.
    """

    def __init__(self, progress: Any, total: int | None, unit: str) -> None:
        check_progress(progress)
        self._bar: Any = None
        self._report: Report | None = progress if callable(progress) else None
        self._progress, self._total, self._unit = progress, total, unit
        self.done = 0

    def __bool__(self) -> bool:
        """Whether anybody wants to know."""
        return bool(self._progress)

    def __enter__(self) -> Progress:
        if self._progress is True:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self._total, unit=f" {self._unit}", leave=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def reach(self, done: int) -> None:
        """Reports that so much is done, where it is more than before."""
        if done <= self.done:
            return
        if self._bar is not None:
            self._bar.update(done - self.done)
        if self._report is not None:
            self._report(done, self._total)
        self.done = done
