"""decoding.Engine: continuous batching."""

from __future__ import annotations

import math
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from decoding.common.progress import Event
from decoding.engine.limits import EngineLimits
from decoding.engine.memory import MemoryPlan, readable
from decoding.generation.call import Call
from decoding.generation.checks import flag, number, whole
from decoding.generation.outputs import GenerateOutput
from decoding.generation.streaming import check_streamed
from decoding.serving.alone import Alone
from decoding.serving.dispatch import Dispatcher
from decoding.serving.following import Following
from decoding.serving.model_engine import StartedCall
from decoding.serving.planning import allocated, compiled, engine_limits, planned
from decoding.serving.request import Request
from decoding.serving.submission import as_batch, check_fits, check_submitted, steps_alone
from decoding.serving.templates import Prepared, Templates
from decoding.tensor_parallel import together
from decoding.token_model import TokenModel, given_ids

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    from decoding.generation.option_types import EngineGenerateOptions, SubmitOptions

Self = TypeVar("Self", bound="Engine")
WHOLE, SALT, POSITIVE = whole(), whole(0, 2**63 - 1), number(above=0)  # checks of arguments


class Engine:
    """Generates for many callers at once: their requests join and leave between any two steps.

        with decoding.Engine(model) as engine:
            requests = [engine.submit(ids, max_new_tokens=40) for ids in prompts]
            found = [request.result() for request in requests]

    Each request has its own options: greedy search, samples and beams of any number run side by
    side, and each result is what generate() returns for that sentence alone. Any number of threads
    and event loops may use one engine. It steps in a thread of its own, which does not need
    Python's lock.

    Some requests *step alone*: those with functions of the caller's (logits_processor,
    stopping_criteria, prefix_allowed_tokens_fn, streamer, progress, cancel), a shortlist, guidance,
    contrastive or constrained search, coverage_penalty, and scores, logits or attentions of the
    steps. They run one after the other, as generate() runs them and in the memory that it uses, in
    a second thread beside the requests that share steps.

    A `with` block waits at its end for what was submitted, and cancels it after an exception; so
    does `async with`.

    Of a model with tensor_parallel all ranks make an Engine. That of rank 0 takes the requests, and
    those of the others follow it: their close() waits until it is closed, and raises decoding.Error
    where a rank has ended before. No request can step alone there.
    """

    def __init__(
        self,
        model: TokenModel,
        memory: int | None = None,
        max_requests: int | None = None,
        *,
        prefix_caching: bool = True,
        overcommit: bool = False,
    ) -> None:
        """
        Args:
            model: what load() returned, with a decoder. The engine shares its weights.
            memory: bytes of the engine's one block, most of which are pages of keys and values.
                None: on a GPU four fifths of what is free; on a CPU enough for usual lengths, at
                most a quarter of what is free.
            max_requests: rows that step at once: a request of greedy search is one row, one with
                beams or samples has as many. None: 64 on a CPU, 1024 on a GPU, or half of it or a
                quarter where memory is short. Others wait.
            prefix_caching: keep the keys and values of prompts' full pages and of whole sources
                while their memory is not needed, for requests that begin with the same tokens.
            overcommit: admit a request before there are pages for the longest result that it may
                have, so that more run at once where most end early. Where pages run out, requests
                are swapped out: their keys and values wait in memory of the host, page-locked on a
                GPU, and they go on where they were when pages are free again. Results are the same.

        Raises NotImplementedError for an encoder alone, decoding.Error where the memory does not
        suffice for one sentence.
        """
        if not isinstance(model, TokenModel):
            raise TypeError(
                f"Engine takes a model that decoding.load() has made, got {type(model).__name__}"
            )
        memory, rows = optional_size("memory", memory), optional_size("max_requests", max_requests)
        options = {
            "prefix_caching": flag("prefix_caching", prefix_caching),
            "overcommit": flag("overcommit", overcommit),
        }
        ranks = None if model.ranks is None else model.ranks.beside()
        group = None if ranks is None else ranks.group
        with together(group):
            engine = model.bind_engine(ranks)
            limits = engine_limits(engine, model.spec, model.place, memory, rows)
        if group is not None:
            limits = EngineLimits(**group.smallest(vars(limits)))
        with together(group):
            plan = planned(engine, limits)
            pool = allocated(plan.bytes, model.place)
        with nullcontext() if ranks is None else ranks.begun([b"Engine"]):
            engine.bind(compiled(limits), pool, **options)
        self._model, self._limits, self._plan = model, limits, plan
        self._dispatcher = Dispatcher(engine) if model.rank == 0 else Following(engine)
        self._templates = Templates(model)
        self._alone = Alone(self._dispatcher.check)
        for each in (self._dispatcher, self._alone):
            weakref.finalize(self, each.close, drain=False)

    @overload
    def submit(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        generation_config: Any = None,
        return_dict_in_generate: Literal[True],
        **options: Unpack[SubmitOptions],
    ) -> Request[GenerateOutput]: ...
    @overload
    def submit(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        generation_config: None = None,
        return_dict_in_generate: Literal[False] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Request[Tensor]: ...
    @overload
    def submit(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        generation_config: Any = None,
        return_dict_in_generate: bool | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Request[Tensor | GenerateOutput]: ...
    def submit(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        inputs: Any = None,
        decoder_input_ids: Any = None,
        priority: int = 0,
        deadline: float | None = None,
        stream: bool = False,
        salt: int = 0,
        **options: Any,
    ) -> Request[Any]:
        """Adds a request, and returns it at once.

        Args:
            input_ids: one sentence as generate() takes it, [n] or [1, n]: ids, or a text.
                `inputs` is another name for it.
            attention_mask, decoder_input_ids: likewise [n] or [1, n].
            priority: requests of a higher one are admitted first, equals in their order.
            deadline: seconds from now. A request that is not done by then ends with TimeoutError.
            stream: deliver tokens once they are certain, for who iterates over the request; without
                it they come in one piece at the end.
            salt: requests of different numbers share no cached keys and values, so that nobody can
                measure what others have asked.
            options: those of generate(), and its other arguments, such as generation_config,
                tokenizer and functions.

        Raises what generate() raises before anything runs; ValueError for several sentences, for
        stream=True beside a streamer, and after close(); decoding.Error for a request that can
        never fit into the memory. What a function raises is raised by result().
        """
        deadline = None if deadline is None else POSITIVE("deadline", deadline)
        how = {
            "priority": WHOLE("priority", priority),
            "deadline": math.inf if deadline is None else deadline,
            "stream": flag("stream", stream),
            "salt": SALT("salt", salt),
        }
        given, prepared = given_ids(input_ids, inputs), None
        if decoder_input_ids is None:
            prepared = self._templates.prepared(given, attention_mask, options)
        if prepared is None:
            call = self._model.prepare(
                as_batch(given),
                attention_mask=as_batch(attention_mask),
                decoder_input_ids=as_batch(decoder_input_ids),
                **options,
            )
            check_submitted(call, stream)
            [sub] = call.sub_batches
            check_fits(sub.request, self._limits)
            if steps_alone(call) or call.cancel is not None:
                return self._step_alone(call, deadline, how["priority"], stream)
            prepared = Prepared.of(call)
            if decoder_input_ids is None:
                self._templates.keep(call, options)
        elif stream:
            check_streamed(prepared.form.config)
        form, prompt, max_time, texts = prepared
        request: Request[Any] = Request(form, prompt, self._dispatcher, deadline, keeps=self)
        self._dispatcher.submit(request, *texts, max_time=max_time, **how)
        return request

    def generate(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        inputs: Any = None,
        decoder_input_ids: Any = None,
        tokenizer: Any = None,
        cancel: Event | None = None,
        **options: Unpack[EngineGenerateOptions],
    ) -> Tensor | GenerateOutput:
        """What the model's generate() returns for any number of sentences, each of which joins as
        soon as there is room, beside the requests of others.

        Arguments and errors are those of submit(), for a batch of sentences; `cancel` is a
        threading.Event that ends it. Raises decoding.Error for a sentence that can never fit, or
        whose numbers are not finite; then none of them goes on.
        """
        call = self._model.prepare(
            given_ids(input_ids, inputs),
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            tokenizer=tokenizer,
            cancel=cancel,
            many=True,
            **options,
        )
        for sub in call.sub_batches:
            check_fits(sub.request, self._limits)
        if steps_alone(call):
            return self._all_alone(call)
        return call.form.as_tensors(StartedCall(call, self._dispatcher).result())

    def _step_alone(
        self, call: Call, deadline: float | None = None, priority: int = 0, stream: bool = False
    ) -> Request[Any]:
        if self._model.ranks is not None:
            raise NotImplementedError(
                "in an Engine of a model with tensor_parallel all requests share steps, and this "
                "one would step alone: leave out functions of your own, cancel, guidance_scale, "
                "force_words_ids, penalty_alpha, coverage_penalty, shortlists, and the scores, "
                "logits and attentions of steps"
            )
        form, prompt = call.form, call.prompt.ids
        request: Request[Any] = Request(form, prompt, self._alone, deadline, keeps=self)
        until = math.inf if deadline is None else deadline
        self._alone.submit(request, call, priority, until, stream)
        return request

    def _all_alone(self, call: Call) -> Tensor | GenerateOutput:
        """Of any number of sentences; whatever is raised, nothing goes on."""
        request = self._step_alone(call)
        try:
            found: Tensor | GenerateOutput = request.result()
            return found
        finally:
            request.cancel()

    def stats(self) -> dict[str, Any]:
        """What the engine is doing and has done.

        running, waiting: requests, those that step alone among them; what follows is of the others.
        pages_used, pages_total: of its memory. steps, tokens: so far. iterations: how many of them,
        each a step and what was read before it, had at most 1, 2, 4, ... 2^14 tokens (but more than
        those before), and more; iteration_tokens: of all of them, prompts' and sources' included.
        prefix_queries: tokens of prompts and sources that were looked for in the prefix cache;
        prefix_hits: those of them that were found computed. swapped: requests that are swapped out,
        some of those that are running. swaps, swapped_bytes: how often one was swapped out so far,
        and the bytes that were copied to the host (see overcommit). seconds: by phase.
        """
        found, alone = self._dispatcher.stats(), self._alone.stats()
        return found | {name: found[name] + count for name, count in alone.items()}

    def memory_plan(self) -> MemoryPlan:
        """The engine's block: its limits, its bytes, and in table() every buffer; requests() says
        how many of some length have room at once."""
        return replace(self._plan, weights=self._model.weight_bytes)

    def close(self, drain: bool = True) -> None:
        """Gives the engine's memory back, after all requests have ended; with drain=False it
        cancels them. Then submit() raises ValueError. Twice does nothing.

        An engine that nobody holds any more, and one that is open when the program ends, is closed
        without draining.
        """
        self._dispatcher.close(drain)
        self._alone.close(drain)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._dispatcher.closed

    @property
    def failure(self) -> BaseException | None:
        """Why the engine has failed, such as a GPU that is lost, and every request with it; None
        while it works."""
        return self._dispatcher.failure

    @property
    def model(self) -> TokenModel:
        """The model that generates."""
        return self._model

    @property
    def rows(self) -> int:
        """Rows that step at once: max_requests."""
        return self._limits.requests

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close, drain=kind is None)

    def __repr__(self) -> str:
        rows, pages, size = self._limits.requests, self._limits.pages, readable(self._plan.bytes)
        closed = ", closed" if self.closed else ""
        return f"Engine({rows} rows, {pages} pages, {size} on {self._model.place}{closed})"


def optional_size(name: str, value: Any) -> int | None:
    """A whole number above 0, or None."""
    return None if value is None else whole(1, 2**62)(name, value)
