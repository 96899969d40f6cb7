"""Limits of memory and time around a piece of a test, which then fails instead of the machine."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def bounded(seconds: int = 20, mebibytes: int = 512) -> Iterator[None]:
    """mebibytes: of addresses beyond those in use."""

    def late(*given: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), old[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, old)
