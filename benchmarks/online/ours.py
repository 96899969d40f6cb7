"""This library: its engine of continuous batches, and generate() behind a dynamic batcher."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from benchmarks.cases.workloads import TOP_K, TOP_P
from benchmarks.online.base import Job, Provider, Reply, new_tokens
from benchmarks.online.batcher import Batcher
from decoding.compare import engines

NEVER = -1  # an end token that no model has


class Ours(Provider):
    """decoding.Engine, whose requests are awaited in one event loop."""

    name = "ours"
    engine = engines.Ours

    def __init__(
        self, engine: Any, device: str, rows: int | None, prefix_caching: bool = True
    ) -> None:
        import decoding

        self.given = (engine, device, rows)
        self.task = engine.task
        self.requests: dict[Reply, Any] = {}
        self.unread: deque[tuple[Reply, bool]] = deque()
        self.readers: set[asyncio.Task[None]] = set()
        self.called = False
        self.server = decoding.Engine(
            engine.model, max_requests=rows, prefix_caching=prefix_caching
        )
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def without_prefix_cache(self) -> Ours:
        """Another one, on the same model."""
        return Ours(*self.given, prefix_caching=False)

    def submit(self, reply: Reply, stream: bool) -> None:
        request = self.server.submit(list(reply.job.ids), stream=stream, **options(reply.job))
        self.requests[reply] = request
        self.unread.append((reply, stream))
        if not self.called:  # the loop is woken once for all that have come by then
            self.called = True
            self.loop.call_soon_threadsafe(self.read_all)

    def read_all(self) -> None:
        self.called = False
        while self.unread:
            task = self.loop.create_task(self.read(*self.unread.popleft()))
            self.readers.add(task)
            task.add_done_callback(self.readers.discard)

    async def read(self, reply: Reply, stream: bool) -> None:
        request = self.requests[reply]
        try:
            if stream:
                async for [tokens] in request:
                    reply.take(len(tokens))
            else:
                [row] = (await request).tolist()
                given = 1 if self.task.has_encoder else len(reply.job.ids)
                reply.take(new_tokens(row[given:], reply.job, self.task.config.eos_token_id))
            reply.finish()
        except Exception as error:
            reply.fail(f"{type(error).__name__}: {error}")
        del self.requests[reply]

    def submit_all(self, replies: Sequence[Reply]) -> None:
        """In a call of their own, which tells no ends before the last."""
        threading.Thread(target=self.generate, args=(replies,), daemon=True).start()

    def generate(self, replies: Sequence[Reply]) -> None:
        ids = [list(reply.job.ids) for reply in replies]
        more = {"max_new_tokens": [reply.job.new for reply in replies]}
        try:
            self.server.generate(ids, pad_token_id=0, **options(replies[0].job) | more)
            for reply in replies:
                reply.take(reply.job.new)
                reply.finish()
        except Exception as error:
            for reply in replies:
                reply.fail(f"{type(error).__name__}: {error}")

    def cancel(self) -> None:
        for request in list(self.requests.values()):
            request.cancel()

    def close(self) -> None:
        self.cancel()
        self.server.close(drain=False)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class OursStatic(Batcher):
    """generate() of whole batches: what the engine's continuous ones are measured against."""

    name = "ours-static"
    engine = engines.Ours

    def __init__(self, engine: Any, device: str, rows: int | None) -> None:
        self.task, self.model = engine.task, engine.model
        super().__init__(engine, device, rows)

    def answer(self, batch: Sequence[Reply]) -> None:
        ids = [list(reply.job.ids) for reply in batch]
        more = {"max_new_tokens": [reply.job.new for reply in batch]}
        rows = self.model.generate(ids, **options(batch[0].job) | more).tolist()
        given = 1 if self.task.has_encoder else max(map(len, ids))
        for reply, row in zip(batch, rows, strict=True):
            reply.take(new_tokens(row[given:], reply.job, self.task.config.eos_token_id))
            reply.finish()


def options(job: Job) -> dict[str, Any]:
    """Those of generate()."""
    found: dict[str, Any] = {"max_new_tokens": job.new, "num_beams": job.beams}
    if not job.ends:
        found["eos_token_id"] = NEVER
    if job.sample:
        found |= {"do_sample": True, "top_k": TOP_K, "top_p": TOP_P}
    return found
