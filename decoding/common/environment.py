"""The library's environment variables: what an argument that is left out means.

docs/environment.md has the table of them, with those of the build and of the GPU's autotuner.
"""

from __future__ import annotations

import logging
import os

VARIABLES = (
    "DECODING_DEVICE",
    "DECODING_DTYPE",
    "DECODING_ISA",
    "DECODING_LOG_LEVEL",
    "DECODING_PEER_ACCESS",
    "DECODING_THREADS",
)
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def given_or_set(given: str, name: str) -> str:
    """An argument of load(): as it is given, or where it is "auto" the variable's value."""
    return os.environ.get(name) or "auto" if given == "auto" else given


def threads() -> int | None:
    """DECODING_THREADS. Raises ValueError where it is no number of threads."""
    value = os.environ.get("DECODING_THREADS")
    if not value:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"DECODING_THREADS must be a whole number of at least 1, got {value!r}")
    return int(value)


def peer_access() -> bool:
    """DECODING_PEER_ACCESS: whether GPUs of ranks may use the memory of each other. Raises
    ValueError where it is neither 0 nor 1."""
    value = os.environ.get("DECODING_PEER_ACCESS") or "1"
    if value not in ("0", "1"):
        raise ValueError(f"DECODING_PEER_ACCESS must be 0 or 1, got {value!r}")
    return value == "1"


def instruction_set(available: list[str]) -> str:
    """DECODING_ISA, or the best of those that the machine has, which comes first. Raises ValueError
    where the machine does not have it."""
    value = os.environ.get("DECODING_ISA") or available[0]
    if value not in available:
        raise ValueError(
            f"DECODING_ISA must be one of {', '.join(available)} on this machine, got {value!r}"
        )
    return value


def set_log_level() -> None:
    """Lets the logger "decoding" write to standard error where DECODING_LOG_LEVEL is set. Raises
    ValueError where that is no level."""
    value = os.environ.get("DECODING_LOG_LEVEL")
    if not value:
        return
    if value.upper() not in LEVELS:
        raise ValueError(f"DECODING_LOG_LEVEL must be one of {', '.join(LEVELS)}, got {value!r}")
    logger = logging.getLogger("decoding")
    logger.setLevel(value.upper())
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("decoding: %(levelname)s: %(message)s"))
        logger.addHandler(handler)
