"""Clients of a server: a process of its own, asked over connections that are kept."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
import urllib.request
from abc import abstractmethod
from typing import Any
from urllib.error import URLError

from benchmarks.online.base import Job, Provider, Reply

PORT = 8731
READY = 120  # seconds that the server may take to come up


class HttpProvider(Provider):
    """Clients in one event loop. For jobs that are texts, which end by themselves."""

    def __init__(self, engine: Any, device: str, rows: int | None) -> None:
        self.task = engine.task
        self.tokenizer = engine.task.load_tokenizer()
        self.server = started(self.command(engine, device, rows))
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    @abstractmethod
    def command(self, engine: Any, device: str, rows: int | None) -> list[str]:
        """That serves the engine's model on PORT."""

    def submit(self, reply: Reply, stream: bool) -> None:
        text = self.tokenizer.decode(reply.job.ids, skip_special_tokens=True)
        path, body = self.body(text, reply.job)
        self.loop.call_soon_threadsafe(self.begin, reply, path, json.dumps(body).encode())

    def body(self, text: str, job: Job) -> tuple[str, dict[str, Any]]:
        """LibreTranslate's, or OpenAI's, with the path."""
        if self.task.has_encoder:
            return "/translate", {"q": text, "num_beams": job.beams, "max_new_tokens": job.new}
        asked = {"prompt": text, "max_tokens": job.new, "temperature": 0.0}
        return "/v1/completions", asked | {"model": str(self.task.directory)}

    def count(self, said: dict[str, Any]) -> int:
        """Tokens of an answer."""
        if self.task.has_encoder:
            return len(self.tokenizer.encode_target(said["translatedText"]))
        tokens: int = said["usage"]["completion_tokens"]
        return tokens

    def begin(self, reply: Reply, path: str, body: bytes) -> None:
        task = self.loop.create_task(self.ask(reply, path, body))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def ask(self, reply: Reply, path: str, body: bytes) -> None:
        reader, writer = await self.connection()
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status, said = await answer(reader)
            if status == 200:
                reply.take(self.count(json.loads(said)))
                reply.finish()
            else:
                reply.fail(said.decode())
            self.idle.append((reader, writer))
        except BaseException as error:
            writer.close()
            reply.fail(f"{type(error).__name__}: {error}")

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is idle, unless the server has closed it meanwhile, or a new one."""
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", PORT)

    def cancel(self) -> None:
        for task in list(self.tasks):
            self.loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        self.cancel()
        self.server.terminate()
        self.server.wait()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def started(command: list[str]) -> subprocess.Popen[bytes]:
    """A server, once it listens. Raises RuntimeError where it does not."""
    server = subprocess.Popen(command)
    until = time.monotonic() + READY
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).close()
            return server
        except (URLError, OSError):
            time.sleep(0.1)
    server.kill()
    raise RuntimeError("the server did not come up")
