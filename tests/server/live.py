"""A server in a thread of this process, and what is asked of it without a client's library."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.error import HTTPError

import uvicorn

import decoding
from decoding.server.served import Served
from decoding.server.site import Site
from decoding.server.writing import Protocol
from decoding.serving import Settings, create_app
from tests.serving.engines import assert_idle


class Said(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Of a stream that has ended as it should."""
        *events, done = self.body.split("\n\n")[:-1]
        assert done == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]


class Live:
    """Serves models in this process; `with` ends it."""

    def __init__(
        self, models: Mapping[str, decoding.Engine | decoding.Model], **settings: Any
    ) -> None:
        self.app = create_app(models, Settings(**settings))
        self.site: Site = self.app.state.site
        options: dict[str, Any] = {"log_config": None, "ws": "none", "access_log": False}
        config = uvicorn.Config(self.app, port=0, http=Protocol, **options)
        self.server = uvicorn.Server(config)
        # Of asyncio's own kind: others are sent small packets late (Nagle).
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1000)
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        work = lambda: asyncio.run(self.server.serve(sockets=[listener]))  # noqa: E731
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def model(self, name: str) -> decoding.Model:
        return self.served(name).model

    def served(self, name: str) -> Served:
        return self.site.models[name]

    def ask(self, path: str, body: Any = None, **headers: str) -> Said:
        """POST of a body, JSON unless it is bytes; GET without one."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return Said(found.status, dict(found.headers), found.read().decode())
        except HTTPError as error:
            return Said(error.code, dict(error.headers), error.read().decode())

    def assert_idle(self) -> None:
        """No request is left anywhere."""
        for served in self.site.models.values():
            if served.engine is None:
                continue
            assert_idle(served.engine)
            until = time.monotonic() + 5
            while served.gate._free < served.gate._rows and time.monotonic() < until:
                time.sleep(0.001)
            assert served.gate._free == served.gate._rows and served.waiting == 0


def raw(live: Live, path: str, body: Any, more: str = "") -> socket.socket:
    """A connection on which a body is sent, and nothing read yet."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(data)}\r\n{more}\r\n"
    connection.sendall(head.encode() + data)
    return connection
