"""Percentiles of times, and pinning of a process to cores."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile, with linear interpolation between the two nearest values."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def pin_to_cores(threads: int) -> None:
    """Keeps this process on `threads` cores, one logical CPU of each where there are enough."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    first_of_core = {siblings(cpu): cpu for cpu in reversed(cpus)}
    chosen = sorted(first_of_core.values())
    os.sched_setaffinity(0, (chosen if len(chosen) >= threads else cpus)[:threads])


def siblings(cpu: int) -> str:
    """The logical CPUs of the core that `cpu` belongs to."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text().strip() if path.exists() else str(cpu)
