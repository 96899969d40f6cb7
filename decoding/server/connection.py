"""What comes over a connection: a request's body, and that its client has gone."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive

from decoding.server.errors import ApiError

MOMENT = 0.01  # seconds
LATER = 1.0  # seconds, after which what has a deadline of its own has told of it


class Gone(Exception):
    """The client has closed the connection."""


async def read_body(receive: Receive, said: str, most: int) -> bytes:
    """said: its length, by the header. Raises ApiError for more bytes than `most`, Gone where the
    rest does not come."""
    if said.isdecimal() and int(said[:20]) > most:
        raise ApiError(413, f"the body has {said[:20]} bytes, and this server takes {most}")
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise ApiError(413, f"the body has more than the {most} bytes that this server takes")
        more = message.get("more_body", False)
    return b"".join(parts)


class Watcher:
    """Cancels a task whose client has gone, or whose time is up. It begins to look for the client
    after a moment: most answers are there before."""

    def __init__(self, receive: Receive, task: asyncio.Task[Any], seconds: float) -> None:
        """seconds: that the task may take from now on."""
        self._receive, self._task = receive, task
        self.gone = self.late = False
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.call_later(seconds + LATER, self._expire)
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Once the body is there."""
        self._timer = self._loop.call_later(MOMENT, self._begin)

    def stop(self) -> None:
        for each in (self._due, self._timer, self._watching):
            if each is not None:
                each.cancel()

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    def _expire(self) -> None:
        self.late = True
        self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._task.cancel()
