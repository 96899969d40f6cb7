"""This library behind HTTP: `decoding serve` in a process of its own, asked by POST /translate."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any
from urllib.error import URLError

from benchmarks.online.base import Job, Provider, Reply
from decoding.compare import engines

PORT = 8731
READY = 120  # seconds that the server may take to come up


class OursHttp(Provider):
    """Clients in one event loop, each request on a connection that is kept. For jobs that are
    texts, which end by themselves."""

    name = "ours-http"
    engine = engines.Ours

    def __init__(self, engine: Any, device: str, rows: int | None) -> None:
        self.tokenizer = engine.tokenizer
        self.server = start(engine, device, rows)
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        return has_encoder and job.ends

    def submit(self, reply: Reply, stream: bool) -> None:
        text = self.tokenizer.decode(reply.job.ids, skip_special_tokens=True)
        body = {"q": text, "num_beams": reply.job.beams, "max_new_tokens": reply.job.new}
        self.loop.call_soon_threadsafe(self.begin, reply, json.dumps(body).encode())

    def begin(self, reply: Reply, body: bytes) -> None:
        task = self.loop.create_task(self.ask(reply, body))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def ask(self, reply: Reply, body: bytes) -> None:
        reader, writer = await self.connection()
        try:
            head = f"POST /translate HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            status, said = await answer(reader)
            if status == 200:
                text = json.loads(said)["translatedText"]
                reply.take(len(self.tokenizer.encode_target(text)))
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


def start(engine: Any, device: str, rows: int | None) -> subprocess.Popen[bytes]:
    """The server, once it answers; with the weights' type and threads of the loaded engine."""
    command = [sys.executable, "-m", "decoding", "serve", "--model", f"it={engine.task.directory}"]
    command += ["--device", device, "--dtype", str(engine.model.dtype).removeprefix("torch.")]
    command += ["--max-queue", "1000000", "--max-queue-seconds", "1000", "--log-level", "error"]
    command += ["--port", str(PORT)]
    if device == "cpu":
        command += ["--threads", str(engine.model.threads)]
    if rows is not None:
        command += ["--max-requests", str(rows)]
    server = subprocess.Popen(command)
    until = time.monotonic() + READY
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=5).close()
            return server
        except (URLError, OSError):
            time.sleep(0.1)
    server.kill()
    raise RuntimeError("the server did not come up")
