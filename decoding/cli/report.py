"""What a command says of its run on standard error: a bar, a line at the end, and its phases."""

from __future__ import annotations

import argparse
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from decoding.cli.messages import counted, place

if TYPE_CHECKING:
    import decoding
    from decoding.common.phases import Phases

PHASES = ("reading", "encoding", "device", "decoding", "writing")


class Report:
    """A run from its first line to its last: in a context, whose end closes the bar.

    phases: that the run fills in. total: lines that there are; None where that is not known.
    """

    def __init__(
        self, model: decoding.Model, args: argparse.Namespace, phases: Phases, total: int | None
    ) -> None:
        self.phases, self.lines, self.tokens = phases, 0, 0
        self._model, self._total, self._progress = model, total, args.progress
        self._quiet, self._profile = args.quiet, args.profile
        self._bar: Any = None

    def __enter__(self) -> Report:
        self._begin, self._busy = time.perf_counter(), self._model.busy_seconds
        if self._progress:
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, unit=" lines", file=sys.stderr)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, lines: int, tokens: int) -> None:
        """So many more are written."""
        self.lines, self.tokens = self.lines + lines, self.tokens + tokens
        if self._bar is not None:
            rate = self.tokens / (time.perf_counter() - self._begin)
            self._bar.set_postfix_str(f"{rate:.0f} tokens/s", refresh=False)
            self._bar.update(lines)

    def say(self) -> None:
        """Where everything is written: the speed, unless --quiet is given, and with --profile the
        phases."""
        seconds, busy = time.perf_counter() - self._begin, self._model.busy_seconds - self._busy
        if not self._quiet:
            digits = 1 if seconds >= 1 else 3
            print(
                f"{counted(self.lines, 'line')}, {counted(self.tokens, 'token')} in "
                f"{seconds:.{digits}f} s: {self.lines / seconds:.1f} lines/s, "
                f"{self.tokens / seconds:.0f} tokens/s with {place(self._model)}, "
                f"busy {busy / seconds:.0%}",
                file=sys.stderr,
            )
        if self._profile:
            self._say_phases(busy)

    def _say_phases(self, busy: float) -> None:
        """By the clock, and of the thread on a core; of the device those in which it computed."""
        wall, of_threads = self.phases.wall, self.phases.busy
        for name in PHASES:
            own = busy if name == "device" else of_threads[name]
            print(f"{name:10} {wall[name]:8.3f} s, busy {own:8.3f} s", file=sys.stderr)
