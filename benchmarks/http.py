"""What HTTP costs: the CPU of a plain request, and the speed of many streams, beside the engine.

    python -m benchmarks.http --model tests/data/stories260K

`decoding serve` runs in a process of its own. Its CPU time is that of all its threads; the
engine's own, for the same requests in a process without HTTP, is measured in turns and taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import decoding
from benchmarks.online.http import answer

PORT = 8732
STORIES = Path(__file__).parent.parent / "tests/data/stories260K"
PROMPT = "Once upon a time"


def serve(model: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "decoding", "serve", "--model", str(model), "--threads", "1"]
    command += ["--port", str(PORT), "--log-level", "error", "--max-requests", "128"]
    server = subprocess.Popen(command)
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return server
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise RuntimeError("the server did not come up")


def cpu_of(process: int) -> float:
    """Seconds of all threads so far, as the scheduler counts them: to the nanosecond."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


async def plain(requests: int, together: int) -> None:
    """Requests of one token, so many at a time."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        for _ in range(requests // together):
            writer.write(head.encode() + body)
            status, said = await answer(reader)
            assert status == 200, said
        writer.close()

    await asyncio.gather(*(client() for _ in range(together)))


async def streams(count: int, tokens: int) -> None:
    """Streams of so many tokens at once, read to their ends."""
    body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        writer.write(head.encode() + data)
        said = await reader.read()
        assert said.rstrip(b"0\r\n").endswith(b"data: [DONE]"), said[-200:]
        writer.close()

    await asyncio.gather(*(client() for _ in range(count)))


class Alone:
    """The engine without HTTP, and without a text: ids in, ids out."""

    def __init__(self, model: Path) -> None:
        loaded = decoding.load(model, device="cpu", threads=1)
        self.ids = loaded.tokenizer.encode(PROMPT)
        self.engine = decoding.Engine(loaded, max_requests=128)

    async def plain(self, requests: int, together: int) -> None:
        async def client() -> None:
            for _ in range(requests // together):
                async for _ in self.engine.submit([self.ids], max_new_tokens=1):
                    pass

        await asyncio.gather(*(client() for _ in range(together)))

    async def streams(self, count: int, tokens: int) -> None:
        async def client() -> None:
            options: dict[str, Any] = {"max_new_tokens": tokens, "eos_token_id": None}
            async for _ in self.engine.submit([self.ids], stream=True, **options).every(0.02):
                pass

        await asyncio.gather(*(client() for _ in range(count)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--model", type=Path, default=STORIES, help="a decoder with a tokenizer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=480, help="of a round")
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=200, help="of a stream")
    options = parser.parse_args()
    alone, server = Alone(options.model), serve(options.model)
    try:
        for together in (1, 16):
            compare_plain(alone, server.pid, options, together)
        compare_streams(alone, server.pid, options)
    finally:
        server.terminate()
        server.wait()
        alone.engine.close(drain=False)


def compare_plain(alone: Alone, server: int, options: argparse.Namespace, together: int) -> None:
    requests, ours, http = options.requests, list[float](), list[float]()
    asyncio.run(plain(requests, together))
    asyncio.run(alone.plain(requests, together))
    for _ in range(options.rounds):
        before = cpu_of(server)
        asyncio.run(plain(requests, together))
        http.append(1e6 * (cpu_of(server) - before) / requests)
        before = time.process_time()
        asyncio.run(alone.plain(requests, together))
        ours.append(1e6 * (time.process_time() - before) / requests)
    over, under = statistics.median(http), statistics.median(ours)
    print(
        f"{together} at a time: {over:.0f} us of CPU a request, {under:.0f} of them the engine's: "
        f"{over - under:.0f} for HTTP and text",
        flush=True,
    )


def compare_streams(alone: Alone, server: int, options: argparse.Namespace) -> None:
    count, tokens = options.streams, options.tokens
    works = {"over HTTP": (server, streams), "without": (os.getpid(), alone.streams)}
    rates: dict[str, list[float]] = {name: [] for name in works}
    costs: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.rounds):
        for name, (process, work) in works.items():
            began, before = time.perf_counter(), cpu_of(process)
            asyncio.run(work(count, tokens))
            rates[name].append(count * tokens / (time.perf_counter() - began))
            costs[name].append(1e6 * (cpu_of(process) - before) / (count * tokens))
    over, under = (statistics.median(found) for found in rates.values())
    said = [f"{statistics.median(found):.1f} {name}" for name, found in costs.items()]
    print(
        f"{count} streams: {over:.0f} tokens/s over HTTP, {under:.0f} without: "
        f"{over / under:.2f}; us of CPU a token: {', '.join(said)}"
    )


if __name__ == "__main__":
    main()
