"""Generation and scoring, sub-batch by sub-batch, on the engine of one model."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from decoding import _C
from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.common.progress import raise_if_set
from decoding.engine.limits import Limits, next_bucket
from decoding.engine.observer import Step, numbers
from decoding.engine.pool import PooledEngine
from decoding.engine.ranks import Ranks
from decoding.engine.request import EngineRequest, EngineResults, ScoreRequest, ScoreResults
from decoding.models.spec import ModelSpec
from decoding.models.weights.dtypes import Numbers, as_array, as_float32

PRE, MID, POST = 1, 2, 4  # stages of the processors: csrc/kernels/search/processors.h

STEPS = 16  # between two returns to Python: Ctrl-C gets through within so many tokens


def check_split(request: EngineRequest) -> None:
    """Raises NotImplementedError for what a model that is split over ranks cannot do."""
    if request.keep_attentions:
        raise NotImplementedError(
            "a model with tensor_parallel keeps no attention, of which each rank has its own "
            "heads': leave out output_attentions, alignments and coverage_penalty"
        )
    if request.shortlist is not None:
        raise NotImplementedError(
            "a model with tensor_parallel takes no shortlist: leave it out, or load the model whole"
        )


class Session(PooledEngine):
    """Generates and scores with one model: one sub-batch at a time."""

    _engine: _C.Session

    def __init__(
        self,
        spec: ModelSpec,
        engine: _C.Session,
        *,
        device: Device,
        limits: Limits | None,
        ranks: Ranks | None = None,
    ) -> None:
        """ranks: those that the model is split over; None: it is whole."""
        self.spec, self.ranks = spec, ranks
        super().__init__(engine, device=device, limits=limits)

    @property
    def graph_nodes(self) -> int:
        return self._engine.graph_nodes

    def run(self, request: EngineRequest) -> EngineResults:
        """Generates; raises ValueError beyond explicit limits, decoding.Error without the memory.

        On a GPU it is work of the caller's current stream. Ctrl-C and Cancelled are raised between
        steps. Whatever is raised, the next call starts afresh.
        """
        if self.ranks is not None:
            check_split(request)
        with self._own_turn(request.cancel), self._call(request):
            stream = self._stream()
            self._reserve(request.limits)
            self._engine.start(request.options, request.batch(stream))
            # A GPU is busy with the source by now, so this takes none of the call's time.
            results = EngineResults.empty(
                request.sentences, request.rows_per_sentence, request.steps, request.fill
            )
            if request.observer is None and request.max_time == math.inf and not request.in_parts:
                self._steps(request)
            else:
                self._step_by_step(request, results)
            self._engine.fetch(
                results.tokens, results.lengths, results.scores, results.sums, results.parent_rows
            )
            if request.keep_attentions:
                kept = as_array(self._engine.state()["attentions"]).copy()
                results = replace(results, attentions=kept)
            return results

    def _call(self, request: EngineRequest | ScoreRequest) -> AbstractContextManager[None]:
        """Of all ranks at once, where the model is split."""
        return nullcontext() if self.ranks is None else self.ranks.call(request.content())

    def _all_say(self, flag: bool) -> bool:
        return flag if self.ranks is None else not self.ranks.any(not flag)

    def _steps(self, request: EngineRequest) -> None:
        """Generates with few returns to Python. Ctrl-C gets through at each of them."""
        at_once = STEPS if request.cancel is None else 1
        done = 0
        while not self._engine.step(at_once):
            done += at_once
            self._between_steps(request, done)

    def _between_steps(self, request: EngineRequest, done: int) -> None:
        raise_if_set(request.cancel)
        if request.reached is not None:
            request.reached(done)

    def score(self, request: ScoreRequest) -> ScoreResults:
        """Each label's log-probability and rank. Errors as in `run`; decoding.Error for logits
        that are not finite."""
        with self._own_turn(), self._call(request):
            stream = self._stream()
            self._reserve(request.limits)
            source = request.source
            found = ScoreResults.empty(len(request.ids))
            self._engine.score(
                None if source is None else source.ids,
                None if source is None else source.positions,
                None if source is None else source.offsets,
                request.sources,
                request.ids,
                request.labels,
                request.offsets,
                found.logprobs,
                found.ranks,
                found.argmax,
                stream=stream,
            )
            self._check_finite(request, found.logprobs)
            return found

    def _check_finite(self, request: ScoreRequest, logprobs: Array) -> None:
        broken = np.isnan(logprobs).nonzero()[0]
        if not len(broken):
            return
        sentence = int(np.searchsorted(request.offsets, broken[0], "right")) - 1
        tensor = self._engine.first_overflow(sentence)
        raise _C.Error(
            "the model's logits are not finite (NaN or infinite) for item "
            f"{request.items[sentence]}" + (f", first in the {tensor}" if tensor else "")
        )

    def attend(self, request: ScoreRequest) -> Array:
        """float32 [tokens, longest source]: how much each token that the decoder reads attends to
        its source. request: keeps attentions. Errors as in `run`."""
        source, sources = request.source, request.sources
        assert source is not None and sources is not None
        with self._own_turn(), self._call(request):
            stream = self._stream()
            self._reserve(request.limits)
            found = np.empty((len(request.ids), source.longest), np.float32)
            self._engine.attend(
                source.ids,
                source.positions,
                source.offsets,
                sources,
                request.ids,
                request.offsets,
                found,
                stream=stream,
            )
            return found

    def _step_by_step(self, request: EngineRequest, results: EngineResults) -> None:
        """Generates with returns to Python between the steps, or between their parts."""
        end = time.monotonic() + request.max_time
        observer, done = request.observer, False
        if observer is not None:
            observer.begin(self.device)
        while not done:
            step = self._next_step(request, results)
            if step is None:
                break  # the host may hear of the end later than the device
            if request.max_time < math.inf and self._is_over(end):
                self._engine.stop_now()
            if request.in_parts:
                done = self._in_parts(request, results, step)
            else:
                done = self._engine.step(1)
            if observer is not None:
                observer.accepted(step)
            self._between_steps(request, step.number)

    def _is_over(self, end: float) -> bool:
        """Whether a moment has passed; of ranks, each of which has its clock, on any."""
        over = time.monotonic() >= end
        return over if self.ranks is None else self.ranks.any(over)

    def _in_parts(self, request: EngineRequest, results: EngineResults, step: Step) -> bool:
        observer = request.observer
        observer = observer if observer is not None and observer.hooked else None
        self._engine.compute()
        if request.keep_logits:
            logits = self._engine.state()["logits"]
            results.step_logits.append(self._in_place(request, step, logits))
        if step.scores is not None:
            self._engine.process_logits(PRE)
            if observer is not None:
                observer.before_mid(step)
            self._engine.process_logits(MID)
            if observer is not None:
                observer.before_post(step)
            self._engine.process_logits(POST)
            if request.keep_scores:
                results.step_scores.append(self._in_place(request, step, step.scores))
        self._engine.select()
        return self._engine.update(None if observer is None else observer.ended(step))

    def _in_place(self, request: EngineRequest, step: Step, values: Numbers) -> Array:
        """float32 [B * K, V], a copy of [active * K, V]; 0 for sentences that are done."""
        rows, vocab = request.rows_per_sentence, values.shape[1]
        every = np.zeros((request.sentences, rows, vocab), np.float32)
        every[step.active] = as_float32(as_array(values)).reshape(-1, rows, vocab)
        return every.reshape(-1, vocab)

    def _next_step(self, request: EngineRequest, results: EngineResults) -> Step | None:
        """The step that comes next; None when no sentence is left."""
        state = self._engine.state()
        if not len(state["number"]):
            return None
        return Step(
            number=int(numbers(state["number"])[0]),
            vocab=self.spec.decoder.vocab,
            active=numbers(state["active"]),
            scores=state["scores"] if request.options.processed else None,
            step_scores=lambda: tuple(results.step_scores) if request.keep_scores else None,
            state=self._engine.state,
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
