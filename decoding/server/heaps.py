"""malloc for a process that answers requests of all kinds for weeks."""

from __future__ import annotations

import ctypes

ARENA_MAX, MMAP_THRESHOLD = -8, -3  # glibc's malloc.h
HEAPS = 2
LARGE = 1 << 17  # bytes of a block that goes back to the system as soon as it is free


def limit_heaps() -> bool:
    """Before threads begin. Whether malloc is glibc's, which has such limits.

    By itself it has eight heaps for each core, and raises the size that is large to that of each
    block that is freed. Small blocks then keep heaps from shrinking that had larger ones: they grew
    by the hour, what was in use not.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(ARENA_MAX, HEAPS) and mallopt(MMAP_THRESHOLD, LARGE)
    )
