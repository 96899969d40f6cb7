"""How answers are written to connections: all that is written in one turn of the loop at once."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD = b"HTTP/1.1 "
MOMENT = 0.001  # seconds that a head waits for its body; it may have none


class Gathered:
    """A transport that writes once in a turn of the loop: an answer's head and its body are one
    packet, and one call of the system's. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._flushing: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """What comes behind a head is written with it at once: one turn less."""
        self._parts.append(data)
        if len(self._parts) > 1 and self._parts[0].startswith(HEAD):
            self._flush()
        elif self._flushing is None and data.startswith(HEAD):
            self._flushing = self._loop.call_later(MOMENT, self._flush)
        elif self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def close(self) -> None:
        """After what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class Protocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's, with such a transport."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Gathered(transport, self.loop))
