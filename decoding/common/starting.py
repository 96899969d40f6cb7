"""Starts processes that Ctrl-C leaves alone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


def start_without_interrupts(process: BaseProcess) -> None:
    """Starts a process that no Ctrl-C reaches, from its first instruction on: it is for the parent,
    which has to end this one. One that comes meanwhile is the parent's afterwards."""
    from multiprocessing import resource_tracker  # not for the commands that start no process

    resource_tracker.ensure_running()  # when it starts, it lets all signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
