"""From a connection to a handler and back: the body, the answer, who has gone, one line of log."""

from __future__ import annotations

import asyncio
import hmac
import logging
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.datastructures import QueryParams
from starlette.types import Message, Receive, Scope, Send

from decoding.common.progress import Cancelled
from decoding.server.connection import Gone, Watcher, read_body
from decoding.server.errors import ApiError, Body, as_api_error, openai_body
from decoding.server.fields import Fields, Kept, encode, read_form, read_json

if TYPE_CHECKING:
    from decoding.server.site import Site

logger = logging.getLogger("decoding.server")
SCHEMES = ("bearer", "deepl-auth-key")
GONE = 499  # logged where a client did not wait for its answer


@dataclass(eq=False)
class Call:
    """One HTTP request. kept: of its endpoint. said: what its line of log says beside the usual."""

    site: Site
    scope: Scope
    kept: Kept
    body: bytes = b""
    began: float = field(default_factory=time.monotonic)
    said: dict[str, Any] = field(default_factory=dict)

    def header(self, name: bytes) -> str:
        """The first of that name, in lower case; empty where there is none."""
        return next((value for own, value in self.scope["headers"] if own == name), b"").decode(
            "latin-1"
        )

    @cached_property
    def query(self) -> QueryParams:
        return QueryParams(self.scope["query_string"])

    def fields(self) -> Fields:
        """The body's; JSON, whatever its type is said to be."""
        return read_json(self.body)

    def form(self, *lists: str) -> Fields:
        """The same of a body that may be an HTML form, too. lists: fields that may come again."""
        kind = self.header(b"content-type")
        if kind.startswith("multipart/"):
            raise ApiError(400, "the body must be JSON or a form that is urlencoded, not multipart")
        is_form = kind.startswith("application/x-www-form-urlencoded")
        return read_form(self.body, lists) if is_form and self.body[:1] != b"{" else self.fields()

    def check_key(self, given: Any = None) -> None:
        """Raises ApiError for one that shows none of the server's keys. given: in the body."""
        keys = self.site.settings.api_keys
        if not keys:
            return
        shown = [*header_keys(self.header(b"authorization")), given, self.query.get("api_key")]
        if not any(same(each, key) for each in shown for key in keys):
            raise ApiError(
                401, "this server needs an API key: Authorization: Bearer KEY", code="api_key"
            )


def header_keys(header: str) -> list[str]:
    """What an Authorization may show: clients send a key that is not ASCII as UTF-8, or as Latin-1.
    It may also be a proxy's own, and the key elsewhere."""
    scheme, _, rest = header.partition(" ")
    key = rest.strip() if scheme.lower() in SCHEMES else header
    return [key, key.encode("latin-1").decode("utf-8", "replace")]


def same(shown: Any, key: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return isinstance(shown, str) and hmac.compare_digest(
        shown.encode("utf-8", "surrogatepass"), key.encode()
    )


@dataclass(frozen=True)
class Reply:
    """An answer that is complete. content: text, or what becomes JSON."""

    content: Any
    type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        given = self.content
        return encode(given) if self.type == "application/json" else bytes(given.encode())


Events = AsyncGenerator[Any, None]  # each becomes JSON
Handler = Callable[[Call], Awaitable["Reply | Events"]]


class Endpoint:
    """An ASGI application that answers with what its handler returns."""

    def __init__(
        self,
        site: Site,
        path: str,
        handler: Handler,
        body: Body = openai_body,
        *,
        key_in_body: bool = False,
        unauthorised: int = 401,
    ) -> None:
        """path: in the metrics. body: makes the body of an error. key_in_body: the handler checks
        the key. unauthorised: the status of an error about it."""
        self._site, self._handler, self._error_body = site, handler, body
        self._key_in_body, self._unauthorised = key_in_body, unauthorised
        self._path, self._kept = path, Kept()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._site, scope, self._kept)
        answer = Answer(send)
        task = asyncio.current_task()
        assert task is not None
        settings = self._site.settings
        watcher = Watcher(receive, task, settings.deadline)
        try:
            if not self._key_in_body:
                call.check_key()
            said_length = call.header(b"content-length")
            call.body = await read_body(receive, said_length, settings.body_bytes)
            watcher.start()
            found = await self._handler(call)
            if isinstance(found, Reply):
                await answer.whole(found)
            else:
                await answer.stream(found)
        except asyncio.CancelledError:
            answer.status = GONE
            if not (watcher.gone or watcher.late or self._site.draining):
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            watcher.stop()
            if not watcher.gone:
                late = TimeoutError("the request was not answered within its deadline")
                said = as_api_error(late if watcher.late else Cancelled())
                await answer.error(said, self._error_body)
        except (Gone, ConnectionError):
            answer.status = GONE
        except Exception as error:
            said = as_api_error(error)
            if said.code == "internal":
                logger.exception("%s %s", scope["method"], scope["path"])
            if said.status == 401:
                said.status = self._unauthorised
            call.said["error"] = said.message[:300]
            watcher.stop()
            await answer.error(said, self._error_body)
        finally:
            watcher.stop()
            self._note(call, answer.status)

    def _note(self, call: Call, status: int) -> None:
        self._site.metrics.responses[self._path, status] += 1
        client = call.scope.get("client") or ("-",)
        line = {
            "time": round(time.time(), 3),
            "client": client[0],
            "method": call.scope["method"],
            "path": call.scope["path"],
            "status": status,
            "seconds": round(time.monotonic() - call.began, 6),
        }
        self._site.log.add(line | call.said)


class Answer:
    """Sends an answer."""

    def __init__(self, send: Send) -> None:
        self._to, self._began, self._streams = send, False, False
        self._sending = False
        self.status = 200

    async def whole(self, reply: Reply) -> None:
        body = reply.body
        headers = {"content-type": reply.type, "content-length": str(len(body)), **reply.headers}
        await self._begin(reply.status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, events: Events) -> None:
        """Server-sent events, ended by [DONE]. The first is there before the headers are sent, so
        that what goes wrong until then has a status of its own."""
        try:
            first = await anext(events)
            self._streams = True
            headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
            await self._begin(200, headers | {"x-accel-buffering": "no"})
            await self._event(first)
            async for event in events:
                await self._event(event)
        finally:
            await events.aclose()
        await self._end()

    async def error(self, error: ApiError, body: Body) -> None:
        """An answer, or behind a part of a stream an event; nothing for who does not even take what
        was sent before."""
        self.status = error.status
        if self._sending:
            return
        if self._streams:
            await self._event(openai_body(error))
            await self._end()
        elif not self._began:
            await self.whole(Reply(body(error), status=error.status, headers=error.headers))

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self._began = status, True
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _event(self, event: Any) -> None:
        data = b"data: %b\n\n" % encode(event)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _send(self, message: Message) -> None:
        self._sending = True
        await self._to(message)
        self._sending = False
