"""Generation and scoring, sub-batch by sub-batch, on the engine of one model."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from decoding import _C
from decoding.engine.limits import Limits, next_bucket
from decoding.engine.observer import Step
from decoding.engine.pool import PooledEngine
from decoding.engine.request import EngineRequest, EngineResults, ScoreRequest
from decoding.models.spec import ModelSpec
from decoding.models.weights.memory import CPU

PRE, MID, POST = 1, 2, 4  # stages of the processors: csrc/kernels/search/processors.h

STEPS = 16  # between two returns to Python: Ctrl-C gets through within so many tokens


class Session(PooledEngine):
    """Generates and scores with one model: one sub-batch at a time."""

    _engine: _C.Session

    def __init__(
        self,
        spec: ModelSpec,
        engine: _C.Session,
        *,
        device: torch.device = CPU,
        limits: Limits | None,
    ) -> None:
        self.spec = spec
        super().__init__(engine, device=device, limits=limits)

    @property
    def graph_nodes(self) -> int:
        return self._engine.graph_nodes

    def run(self, request: EngineRequest) -> EngineResults:
        """Generates; raises ValueError beyond explicit limits, decoding.Error without the memory.

        On a GPU it is work of the caller's current stream. Ctrl-C is raised between steps. Whatever
        is raised, the next call starts afresh.
        """
        with self._turn:
            stream = self._stream()
            self._reserve(request.limits())
            self._start(request, stream)
            # A GPU is busy with the source by now, so this takes none of the call's time.
            results = EngineResults.empty(
                request.batch, request.rows_per_sentence, request.steps, request.fill
            )
            if request.observer is None and request.max_time is None and not request.in_parts:
                while not self._engine.step(STEPS):
                    pass  # Ctrl-C gets through
            else:
                self._step_by_step(request, results)
            self._engine.take(
                results.tokens, results.lengths, results.scores, results.sums, results.parent_rows
            )
            if request.keep_attentions:
                results = replace(results, attentions=self._attentions(request))
            return results

    def _start(self, request: EngineRequest, stream: int) -> None:
        source = request.source
        self._engine.start(
            None if source is None else source.ids,
            None if source is None else source.positions,
            None if source is None else source.offsets,
            request.prompt.ids,
            request.prompt.offsets,
            request.items,
            request.sentences,
            request.rows_per_sentence,
            request.rules,
            request.search,
            controls=request.processors,
            warpers=request.filters,
            stop_table=request.stop_table,
            stop_first=request.stop_first,
            shortlist=request.shortlist,
            shadows=request.unconditional,
            stream=stream,
        )

    def _attentions(self, request: EngineRequest) -> Tensor:
        """float32 [steps, B * K, longest source], of the steps that were taken."""
        assert request.source is not None
        steps = int(self._buffer("state")[0]) - 1
        kept = self._buffer("attentions")[:steps, : request.rows, : request.source.longest]
        return kept.to("cpu", copy=True)

    def score(self, request: ScoreRequest) -> Tensor:
        """float32 [tokens], each label's log-probability. Errors as in `run`."""
        with self._turn:
            stream = self._stream()
            self._reserve(request.limits())
            source = request.source
            logprobs = torch.empty(len(request.ids))
            self._engine.score(
                None if source is None else source.ids,
                None if source is None else source.positions,
                None if source is None else source.offsets,
                request.ids,
                request.labels,
                request.offsets,
                logprobs,
                stream=stream,
            )
            return logprobs

    def _step_by_step(self, request: EngineRequest, results: EngineResults) -> None:
        """Generates with returns to Python between the steps, or between their parts."""
        end = None if request.max_time is None else time.monotonic() + request.max_time
        observer, done = request.observer, False
        if observer is not None:
            observer.begin(self.device)
        while not done:
            step = self._next_step(request, results)
            if not len(step.active):
                break  # the host may hear of the end later than the device
            if end is not None and time.monotonic() >= end:
                self._engine.stop_now()
            if request.in_parts:
                done = self._in_parts(request, results, step)
            else:
                done = self._engine.step(1)
            if observer is not None:
                observer.accepted(step)

    def _in_parts(self, request: EngineRequest, results: EngineResults, step: Step) -> bool:
        observer = request.observer
        observer = observer if observer is not None and observer.hooked else None
        self._engine.compute()
        if request.keep_logits:
            rows, vocab = len(step.active) * request.rows_per_sentence, self.spec.decoder.vocab
            logits = self._buffer("logits")[:rows, :vocab]
            results.step_logits.append(self._in_place(request, step, logits))
        if request.processors is not None:
            self._engine.process(PRE)
            if observer is not None:
                observer.before_mid(step)
            self._engine.process(MID)
            if observer is not None:
                observer.before_post(step)
            self._engine.process(POST)
            if request.keep_scores:
                assert step.scores is not None
                results.step_scores.append(self._in_place(request, step, step.scores))
        self._engine.pick()
        return self._engine.accept(None if observer is None else observer.ended(step))

    def _in_place(self, request: EngineRequest, step: Step, values: Tensor) -> Tensor:
        """float32 [B * K, V], a copy of [active * K, V]; 0 for sentences that are done."""
        every = torch.zeros(request.batch, request.rows_per_sentence, values.shape[1])
        every[step.active.cpu()] = values.float().cpu().view(-1, *every.shape[1:])
        return every.flatten(0, 1)

    def _next_step(self, request: EngineRequest, results: EngineResults) -> Step:
        """The step that comes next, as Python may look at it."""
        number, _, active = self._buffer("state").tolist()
        rows, all_rows = active * request.rows_per_sentence, request.rows
        competing = isinstance(request.search, _C.Beam)
        m = max(2, 1 + request.eos) * request.rows_per_sentence

        def candidates() -> Tensor:
            if not competing:
                return self._raw("best").view(-1, 2)[:rows, 1:].long()
            return self._raw("candidates").view(-1, 2)[: active * m, 1].view(-1, m).long()

        def finished() -> tuple[Tensor, Tensor]:
            most = request.max_finished or request.rows_per_sentence
            lists = self._raw("finished").view(-1, 5)[: request.batch * most]
            return lists.view(-1, most, 5), self._buffer("finished_count")[: request.batch]

        return Step(
            number=number,
            vocab=self.spec.decoder.vocab,
            active=self._buffer("live")[:active].long(),
            scores=None
            if request.processors is None
            else self._buffer("scores")[:rows, : self.spec.decoder.vocab],
            step_scores=lambda: tuple(results.step_scores) if request.keep_scores else None,
            candidates=candidates,
            going=lambda: self._buffer("live")[: int(self._buffer("state")[2])].long(),
            tokens=lambda: self._buffer("tokens")[number - 1, :all_rows].long(),
            parents=lambda: self._buffer("parents")[number - 1, :all_rows].long(),
            ended=lambda: self._buffer("length")[:all_rows].long(),
            finished=finished,
        )

    def _bucket(self, needed: Limits) -> Limits:
        """`needed`, rounded up, but not beyond the model's own tables."""
        encoder, decoder = self.spec.encoder, self.spec.decoder
        source = min(next_bucket(needed.source), encoder.positions) if encoder else 0
        return replace(
            needed,
            batch=next_bucket(needed.batch),
            source=source,
            prompt=min(next_bucket(needed.prompt), decoder.positions),
            target=min(next_bucket(needed.target), decoder.positions),
            labels=min(next_bucket(needed.labels), decoder.positions),
            shortlist=min(next_bucket(needed.shortlist), decoder.vocab),
        )
