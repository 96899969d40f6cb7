"""CTranslate2 behind a dynamic batcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.online.base import Job, Reply, new_tokens
from benchmarks.online.batcher import Batcher
from decoding.compare import engines
from decoding.compare.engines.ctranslate2 import options_of


class CTranslate2(Batcher):
    """In greedy search a callback hears of each token: so answers stream, and a row ends at the
    length that its request asks for, whatever others of its batch do. A batch with beams runs to
    its longest request."""

    name = "ctranslate2"
    engine = engines.ENGINES["ctranslate2"]

    def __init__(self, engine: Any, device: str, rows: int | None) -> None:
        self.task, self.translator = engine.task, engine.engine
        super().__init__(engine, device, rows)

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        return not job.sample

    def answer(self, batch: Sequence[Reply]) -> None:
        rows = [list(map(str, reply.job.ids)) for reply in batch]
        call = self.options(batch)
        if self.task.has_encoder:
            found = self.translator.translate_batch(rows, **call)
            answers = [[int(token) for token in result.hypotheses[0]] for result in found]
        else:
            found = self.translator.generate_batch(rows, include_prompt_in_result=False, **call)
            answers = [result.sequences_ids[0] for result in found]
        for reply, row in zip(batch, answers, strict=True):
            if not reply.done.is_set():
                reply.take(new_tokens(row, reply.job, self.task.config.eos_token_id))
                reply.finish()

    def options(self, batch: Sequence[Reply]) -> dict[str, Any]:
        job, most = batch[0].job, max(reply.job.new for reply in batch)
        call = options_of(self.task.config)
        call |= {"beam_size": job.beams, "return_end_token": job.ends}
        length = "decoding_length" if self.task.has_encoder else "length"
        call[f"max_{length}"] = most
        if not job.ends:
            ends = [[str(token)] for token in self.task.config.eos_token_id]
            call["suppress_sequences"] = [*(call["suppress_sequences"] or []), *ends]
            call[f"min_{length}"] = most
        if job.beams == 1:
            call["callback"] = lambda step: hear(batch[step.batch_id], step.is_last)
        return call


def hear(reply: Reply, is_last: bool) -> bool:
    """Of a token. Returns whether it is the last that the request asks for."""
    reply.take(1)
    ended = reply.tokens >= reply.job.new
    if ended or is_last:
        reply.finish()
    return ended
