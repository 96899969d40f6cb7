"""Starts processes while no signal can come between."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def held_signals(*signals: signal.Signals) -> Iterator[None]:
    """One that comes in the block is heard at its end. A process that is started in it holds them
    from its first instruction on, until `release_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals(*signals: signal.Signals) -> None:
    """Those that have come meanwhile are heard now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def start_without_interrupts(process: BaseProcess) -> None:
    """Starts a process that no Ctrl-C reaches: it is for the parent, which has to end this one."""
    from multiprocessing import resource_tracker  # not for the commands that start no process

    resource_tracker.ensure_running()  # when it starts, it lets all signals through
    with held_signals(signal.SIGINT):
        process.start()
