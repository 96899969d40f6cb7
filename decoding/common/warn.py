"""Warnings at the line of the caller's own code."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from pathlib import Path

# What stands between the caller and a warning: this package, and what it is called through.
INSIDE = (f"{Path(__file__).parent.parent}/", functools.__file__, contextlib.__file__)


@functools.cache
def warn_once(message: str) -> None:
    """Warns of what is true of the machine: once in a process."""
    warn(message)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside this package: the line to change is the caller's, however
    deep inside the library the reason was found."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        level += 1
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)
