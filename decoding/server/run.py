"""The process of `decoding serve`: uvicorn, until a signal ends it or an engine fails."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

import decoding
from decoding.server.site import Site
from decoding.server.writing import Protocol

LOOK = 0.2  # seconds, after which it is looked whether an engine has failed
NEW_OBJECTS = 10_000  # after which Python's collector looks through them
LAST = 1.0  # seconds for the answers to those who waited for it


class Server(uvicorn.Server):
    """Ends itself where an engine fails, and says that it drains. signals: those that ended it."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site
        self.signals: list[int] = []

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn raises them again in its event loop, which would log an exception."""
        with super().capture_signals():
            yield
            self.signals, self._captured_signals = self._captured_signals, []

    async def main_loop(self) -> None:
        watcher = asyncio.create_task(self._watch())
        try:
            await super().main_loop()
        finally:
            self._site.draining = True
            watcher.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves the application open then
            await self.lifespan.shutdown()
        if self.server_state.tasks:  # cancelled after the limit; each says so in the log
            await asyncio.wait(self.server_state.tasks, timeout=LAST)
            self._site.log.flush()

    async def _watch(self) -> None:
        while self._site.failure is None:
            await asyncio.sleep(LOOK)
        logging.getLogger("decoding.server").critical("the engine failed: %s", self._site.failure)
        await asyncio.sleep(LAST)
        self.should_exit = True


@contextmanager
def collector_for_requests() -> Iterator[None]:
    """Python's collector does not look through what is loaded again and again, while requests wait;
    nor, for the little that they leave to it, after each of them."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def check_address(host: str, port: int) -> None:
    """Raises OSError where uvicorn could not listen: it would log that, and end the process."""

    async def bind() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        server.close()

    asyncio.run(bind())


def run(app: Starlette, *, drain: int, **options: object) -> None:
    """Serves until SIGINT or SIGTERM; then requests have `drain` seconds to end. options: of
    uvicorn.Config. Raises decoding.Error where an engine has failed."""
    site: Site = app.state.site
    config = uvicorn.Config(
        app,
        http=Protocol,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=drain,
        ws="none",
        **options,  # type: ignore[arg-type]
    )
    server = Server(config, site)
    with collector_for_requests():
        server.run()
    for number in reversed(server.signals):  # what they mean to a program that does not serve
        signal.raise_signal(number)
    if site.failure is not None:
        raise decoding.Error(f"the engine failed: {site.failure}")
