"""The access log: one line of JSON for each answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from decoding.server.fields import encode

logger = logging.getLogger("decoding.server.access")
LATER = 0.1  # seconds, in which lines come together


class AccessLog:
    """Writes lines a moment later, all at once: a record of `logging` for each would cost as much
    as a third of a short request. For one event loop."""

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []

    def add(self, line: dict[str, Any]) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(LATER, self.flush)
        self._lines.append(line)

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            logger.info(b"\n".join(map(encode, lines)).decode())
