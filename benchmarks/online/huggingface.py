"""transformers' continuous batching: the manager that generate_batch() starts, kept running."""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from typing import Any

from benchmarks.online.base import Job, Provider, Reply
from decoding.compare import engines

PAGES_ON_CPU = 128  # of 256 tokens; by default it takes most of the memory
POLL = 0.1  # seconds after which its thread looks whether to end


class HuggingFace(Provider):
    """As its documentation has it by default: it chooses attention, graphs and memory on a GPU."""

    name = "huggingface"
    engine = engines.ENGINES["huggingface"]

    def __init__(self, engine: Any, device: str, rows: int | None) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        settings = {"num_blocks": PAGES_ON_CPU} if device == "cpu" else {}
        if rows is not None:
            settings["max_requests_per_batch"] = rows
        self.ends = list(engine.task.config.eos_token_id)
        self.replies: dict[str, Reply] = {}
        self.names = map(str, itertools.count())
        self.context = ExitStack()
        self.manager = self.context.enter_context(
            engine.model.continuous_batching_context_manager(
                GenerationConfig(do_sample=False, eos_token_id=-1),
                continuous_batching_config=ContinuousBatchingConfig(**settings),
            )
        )
        self.open = True
        self.thread = threading.Thread(target=self.collect, daemon=True)
        self.thread.start()

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        return not has_encoder and job.beams == 1 and not job.sample

    def submit(self, reply: Reply, stream: bool) -> None:
        name, job = next(self.names), reply.job
        self.replies[name] = reply
        self.manager.add_request(
            list(job.ids),
            request_id=name,
            max_new_tokens=job.new,
            streaming=stream,
            eos_token_id=self.ends if job.ends else -1,
        )

    def collect(self) -> None:
        while self.open:
            result = self.manager.get_result(timeout=POLL)
            if result is not None:
                self.write(result)
            if not self.manager.is_running():
                for reply in self.replies.values():
                    reply.fail("the generation loop has ended")

    def cancel(self) -> None:
        for name in list(self.replies):
            del self.replies[name]
            self.manager.cancel_request(name)

    def close(self) -> None:
        self.open = False
        self.thread.join()
        self.context.close()

    def write(self, result: Any) -> None:
        """result: has all tokens so far."""
        reply = self.replies.get(result.request_id)
        if reply is None:  # cancelled
            return
        reply.take(len(result.generated_tokens) - reply.tokens)
        if result.is_finished():
            del self.replies[result.request_id]
            reply.fail(result.error) if result.error else reply.finish()
