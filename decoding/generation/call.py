"""A call of generate(): resolves, checks, runs the sub-batches and joins their results."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from decoding.common.arrays import Array
from decoding.common.progress import Event, Progress, check_event, check_progress, raise_if_set
from decoding.common.warn import warn
from decoding.engine.request import EngineRequest, EngineResults
from decoding.engine.session import Session
from decoding.generation import outputs
from decoding.generation.batching import ROWS, TokenBatch, common_device, split
from decoding.generation.config import GenerationConfig
from decoding.generation.coverage import rank_by_coverage
from decoding.generation.functions.criteria import replace_options
from decoding.generation.functions.histories import ObservedRows
from decoding.generation.functions.hooks import Hooks
from decoding.generation.functions.observer import CallObserver
from decoding.generation.inputs import (
    GenerateInputs,
    by_width,
    check_per_row,
    check_source_tokens,
    read_inputs,
)
from decoding.generation.request import build_request, drawn_seed, with_shortlist
from decoding.generation.resolved import ResolvedOptions, resolved
from decoding.generation.results import SubBatchResult
from decoding.generation.special_tokens import fill_id
from decoding.generation.stop_strings import StopTable, stop_table
from decoding.generation.strategies import Strategy
from decoding.generation.streaming import TokenListener
from decoding.text.shortlist import Shortlist, as_shortlist

if TYPE_CHECKING:
    from torch import Tensor


FIRST = np.arange(1)  # the index of the only sentence of a call


@dataclass(frozen=True)
class SubBatch:
    """Sentences of a call that the engine computes at once."""

    chosen: Array  # int64 [n], their indices in the call
    prompt: Array  # int64 [n, P], their prompts as the caller gave them
    request: EngineRequest


@dataclass(frozen=True)
class ResultForm:
    """What gives results the form that generate() returns."""

    options: ResolvedOptions
    source: TokenBatch | None  # its ids matter only where steps are kept
    device: str  # of the results
    tokenizer: Any  # that names tokens, or a function that finds it

    @property
    def config(self) -> GenerationConfig:
        return self.options.config

    @property
    def strategy(self) -> Strategy:
        return self.options.strategy

    def output(self, results: Sequence[SubBatchResult]) -> Array | outputs.GenerateOutput:
        """What generate() returns, with arrays for tensors, of the results of all sub-batches."""
        return outputs.build_output(self.config, self.strategy, results, self.source)

    def as_tensors(self, found: Array | outputs.GenerateOutput) -> Tensor | outputs.GenerateOutput:
        """What generate() returns. found: the same with arrays."""
        output = outputs.as_tensors(found, self.device)
        if isinstance(output, outputs.Output):
            output.returned, output.tokenizer = self.strategy.returned, self.tokenizer
        return output


class Started(Protocol):
    """A call that has begun, or begins with result()."""

    waits: bool  # nothing is computed before result()

    def result(self) -> Array | outputs.GenerateOutput:
        """What generate() returns, with arrays for tensors, or raises."""

    def cancel(self) -> None:
        """Ends it, where nobody asks for its result any more."""


class Continuous(Protocol):
    """An engine that a call's sentences join and leave one by one."""

    def takes(self, call: Call) -> bool:
        """Whether it computes all that the call asks for."""

    def start(self, call: Call) -> Started: ...


@dataclass(frozen=True)
class Call:
    """A call of generate(), checked.

    It is computed sub-batch by sub-batch. Where there are more rows than one of them may have, in
    it or in calls like it, and the model has no explicit limits, an engine computes it, in which
    the next sentence takes the place of each that has ended.
    """

    session: Session
    form: ResultForm
    seed: int  # where the options have none
    prompt: TokenBatch
    hooks: Hooks
    listener: TokenListener | None
    stop: StopTable | None
    shortlist: Shortlist | None
    cancel: Event | None
    progress: Any  # as in Progress
    engine: Continuous | None = None  # None: all goes by sub-batches
    many: bool = False  # other calls follow before its result is asked for
    started: float = field(default_factory=time.monotonic)

    @property
    def options(self) -> ResolvedOptions:
        return self.form.options

    @property
    def source(self) -> TokenBatch | None:
        return self.form.source

    @property
    def config(self) -> GenerationConfig:
        return self.form.config

    @property
    def strategy(self) -> Strategy:
        return self.form.strategy

    def run(self) -> Tensor | outputs.GenerateOutput:
        """Generates."""
        return self.form.as_tensors(self.start().result())

    def start(self) -> Started:
        """Begins to generate, where an engine does it."""
        if self.is_continuous:
            assert self.engine is not None
            return self.engine.start(self)
        return Waiting(self)

    @cached_property
    def is_continuous(self) -> bool:
        """Whether its sentences join and leave an engine one by one."""
        if self.engine is None or self.session.limits is not None:
            return False
        if self.session.ranks is not None:  # all of them make the call, and an engine leads others
            return False
        device, each = self.session.device.type, self.strategy.rows_per_sentence
        many = self.many or len(self.prompt) * each > ROWS[device]
        fits = max(each, self.strategy.max_finished) <= ROWS[device]
        return many and fits and self.engine.takes(self)

    def run_batches(self, ended: Event | None = None) -> Array | outputs.GenerateOutput:
        """Generates, sub-batch by sub-batch. ended: looked at now and then, where nobody wants the
        result any more; it costs less than `cancel`, which is looked at in every step."""
        return self.form.output(self.results(ended))

    def results(self, ended: Event | None = None) -> list[SubBatchResult]:
        """The same, as ResultForm.output() takes it."""
        results, before = [], 0
        with Progress(self.progress, self._steps, "steps") as progress:
            for sub in self.sub_batches:
                raise_if_set(ended)
                request = self._observed(sub, progress, before, ended)
                results.append(SubBatchResult(sub.chosen, sub.prompt, self._run(request)))
                before += request.steps
                progress.reach(before)
        return results

    def watched(self, listener: TokenListener | None, cancel: Event) -> Call:
        """The same call, but for who hears of its tokens and what ends it."""
        found = replace(self, listener=listener, cancel=cancel)
        vars(found)["sub_batches"] = self.sub_batches  # made once, and so are their warnings
        return found

    def _observed(
        self, sub: SubBatch, progress: Progress, before: int, ended: Event | None
    ) -> EngineRequest:
        """before: steps of the sub-batches before it."""

        def reached(done: int) -> None:
            raise_if_set(ended)
            progress.reach(before + done)

        observer = self._observer(sub)
        return replace(sub.request, observer=observer, reached=reached, cancel=self.cancel)

    def _run(self, request: EngineRequest) -> EngineResults:
        if request.max_time < math.inf:
            passed = time.monotonic() - self.started
            request = replace(request, max_time=max(0.0, request.max_time - passed))
        results = self.session.run(request)
        if self.strategy.competing and self.config.coverage_penalty > 0:
            assert request.source is not None
            lengths = np.diff(request.source.offsets)
            results = rank_by_coverage(results, lengths, self.config.coverage_penalty)
        if self.listener is not None:
            self.listener.end(results)
        return results

    @property
    def _steps(self) -> int:
        """The most steps that the call takes."""
        return sum(sub.request.steps for sub in self.sub_batches)

    @cached_property
    def sub_batches(self) -> list[SubBatch]:
        return list(self._sub_batches())

    def _most_sentences(self) -> int | None:
        """Of a sub-batch, by explicit limits; None where there are none."""
        if self.session.limits is None:
            return None
        guided = self.options.shared.guided  # a second prompt for each
        most = self.session.limits.batch // (2 if guided else 1)
        if most == 0:
            raise ValueError(
                "guidance_scale computes two prompts for each sentence: load with Limits(batch=2) "
                "or more"
            )
        return most

    def _sub_batches(self) -> Iterator[SubBatch]:
        most = self._most_sentences()
        if len(self.prompt) == 1:
            yield SubBatch(FIRST, self.prompt.ids, self._request(FIRST, self.prompt))
            return
        groups = list(by_width(self.prompt, self.source is not None))
        observed = self.hooks or self.listener is not None
        if observed and (len(groups) > 1 or len(self.prompt) > (most or len(self.prompt))):
            raise ValueError(
                "functions and streamers look at all rows side by side: pass decoder_input_ids of "
                "one length, and no more rows than the limits' batch"
            )
        rows, device = self.strategy.rows_per_sentence, self.session.device.type
        for group, prompt in groups:
            order_by = prompt.lengths if self.source is None else self.source.lengths[group]
            if observed:
                parts = [np.arange(len(group))]
            elif self.is_continuous:  # the longest first, so that the last to end are short
                parts = [(-order_by).argsort(kind="stable")]
            else:
                parts = split(order_by, rows, most, device)
            for part in parts:
                own = prompt if is_all(part, group) else prompt.select(part)
                yield SubBatch(group[part], own.ids, self._request(group[part], own))

    def _request(self, chosen: Array, prompt: TokenBatch) -> EngineRequest:
        """chosen: int64 [n], indices of the sub-batch's sentences in the call."""
        source = self.source
        if source is not None and not is_all(chosen, self.prompt):
            source = source.select(chosen)
        options = self.options.for_sentences(chosen)
        request = build_request(
            options,
            self.session.spec.decoder,
            prompt=prompt,
            source=source,
            chosen=chosen,
            seed=self.seed,
            stop=self.stop,
            hooked=bool(self.hooks),
        )
        if self.shortlist is not None and request.source is not None:
            request = with_shortlist(request, self.shortlist, options.config)
        return request

    def _observer(self, sub: SubBatch) -> CallObserver | None:
        if not self.hooks and self.listener is None:
            return None
        pad, config = fill_id(self.config), self.config
        rows = ObservedRows(
            prompt=sub.prompt,
            rows_per_sentence=self.strategy.rows_per_sentence,
            max_new=sub.request.steps,
            fill=0 if pad is None else pad,
            competing=self.strategy.competing or config.contrastive,
            agreeing=config.num_beam_groups == 1 and not config.force_words_ids,
        )
        return CallObserver(self.hooks, self.listener, rows)


def is_all(chosen: Array, of: Sized) -> bool:
    """Whether the indices are all there are, in order."""
    return chosen is FIRST or np.array_equal(chosen, np.arange(len(of)))


@dataclass(frozen=True)
class Waiting:
    """A call that is computed where its result is asked for."""

    call: Call
    ended: threading.Event = field(default_factory=threading.Event)
    waits = True

    def result(self) -> Array | outputs.GenerateOutput:
        return self.call.run_batches(self.ended)

    def cancel(self) -> None:
        self.ended.set()


def prepare(
    session: Session,
    checkpoint: Mapping[str, object],
    inputs: GenerateInputs,
    options: Mapping[str, object],
    listener: TokenListener | None = None,
    engine: Continuous | None = None,
    many: bool = False,
) -> Call:
    """Checks a call. checkpoint: the model's generation_config.json. listener: hears of the tokens
    as they come. engine: for calls of many sentences, or many of them.

    Raises what Model.generate() raises before anything runs.
    """
    check_event(inputs.cancel)
    check_progress(inputs.progress)
    spec = session.spec
    given = resolved(options, inputs.generation_config, checkpoint, spec)
    for warning in given.warnings:
        warn(warning)
    config = given.config
    device = common_device(
        session.device,
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        decoder_input_ids=inputs.decoder_input_ids,
    )
    source, prompt = read_inputs(spec, config, inputs)
    check_per_row(config, given.per_row, len(prompt))
    if source is not None:
        check_source_tokens(config, source, spec.decoder.vocab)
    if listener is not None:
        listener.check(config, len(prompt))
    config, criteria = replace_options(
        config, inputs.stopping_criteria, prompt.width, spec.decoder.positions
    )
    hooks = Hooks(config, inputs.logits_processor, inputs.prefix_allowed_tokens_fn, criteria)
    config = hooks.without_replaced(config)
    if config is not given.config:
        given = ResolvedOptions.of(config, spec)
    stop = None
    if config.stop_strings:
        stop = stop_table(inputs.tokenizer, config.stop_strings, spec.decoder.vocab, session.device)
    call = Call(
        session,
        ResultForm(given, source, device, inputs.tokenizer),
        drawn_seed() if config.do_sample and config.seed is None else 0,
        prompt,
        hooks,
        listener,
        stop,
        as_shortlist(inputs.shortlist, spec, session.device.type),
        inputs.cancel,
        inputs.progress,
        engine,
        many,
    )
    _ = call.sub_batches  # all of them are made, and so checked, before the first runs
    return call
