"""CTranslate2 behind the thinnest of servers: a batcher of 5 ms, Starlette and uvicorn.

    python -m benchmarks.online.ctranslate2_app --model DIR --port PORT

POST /translate takes {"q": text, "num_beams": K, "max_new_tokens": N}.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.online.base import Job, Reply
from benchmarks.online.ctranslate2 import CTranslate2
from decoding.compare.engines import Settings
from decoding.compare.task import Task


class Awaited(Reply):
    """A reply that a coroutine waits for. row: its tokens."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.row: Sequence[int] = ()
        self.loop, self.ended = asyncio.get_running_loop(), asyncio.Event()

    def end(self, row: Sequence[int]) -> None:
        self.row = row
        self.loop.call_soon_threadsafe(self.ended.set)

    def fail(self, error: object) -> None:
        super().fail(error)
        self.loop.call_soon_threadsafe(self.ended.set)


class AsyncCTranslate2(CTranslate2):
    """Whose answers are kept."""

    def answer(self, batch: Sequence[Reply]) -> None:
        rows = [list(map(str, reply.job.ids)) for reply in batch]
        options = {**self.options(batch), "callback": None}
        for reply, result in zip(
            batch, self.translator.translate_batch(rows, **options), strict=True
        ):
            assert isinstance(reply, Awaited)
            reply.end([int(token) for token in result.hypotheses[0]])


def make_app(provider: AsyncCTranslate2, task: Task) -> Starlette:
    tokenizer = task.load_tokenizer()

    async def health(request: Request) -> Response:
        return Response()

    async def translate(request: Request) -> Response:
        asked: dict[str, Any] = await request.json()
        ids = tokenizer.encode(asked["q"])
        reply = Awaited(Job(ids, asked["max_new_tokens"], asked["num_beams"], ends=True))
        provider.submit(reply, stream=False)
        await reply.ended.wait()
        if reply.error:
            return JSONResponse({"error": reply.error}, 500)
        text = tokenizer.decode(reply.row, skip_special_tokens=True)
        return JSONResponse({"translatedText": text})

    return Starlette(
        routes=[Route("/health", health), Route("/translate", translate, methods=["POST"])]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.online.ctranslate2_app")
    add = parser.add_argument
    add("--model", type=Path, required=True)
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--threads", type=int, default=2)
    add("--rows", type=int)
    add("--port", type=int, required=True)
    options = parser.parse_args()
    task = Task.read(options.model)
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "converted"
        AsyncCTranslate2.engine.convert(task, options.dtype, converted)
        settings = Settings(options.device, options.dtype, options.threads, converted=converted)
        engine = AsyncCTranslate2.engine(task, settings)
    app = make_app(AsyncCTranslate2(engine, options.device, options.rows), task)
    uvicorn.run(app, port=options.port, log_level="error", timeout_keep_alive=75)


if __name__ == "__main__":
    main()
