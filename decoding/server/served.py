"""A model that is served: its engine, and the way in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

import decoding
from decoding.common.arrays import Array
from decoding.generation.config import GenerationConfig
from decoding.generation.stop_strings import has_stop_table
from decoding.server.errors import ApiError, reading
from decoding.server.gate import Gate
from decoding.server.metrics import ModelMetrics
from decoding.server.settings import Settings
from decoding.server.tasks import uncancelled
from decoding.server.translating.languages import ServedLanguages
from decoding.serving.submission import config_alone
from decoding.text.token_texts import token_texts

AHEAD = 2  # times the rows that step at once are inside an engine
ALONE = 2  # requests that step alone are inside: one that runs, and the next
STOPS, STOP_CHARACTERS = 16, 128  # each character is a row of a table as wide as the vocabulary
INTERVAL = 0.02  # seconds between two pieces of a stream, at least
PIECES = 1500  # of all streams in a second: they cost a tenth of a core
T = TypeVar("T")


class Served:
    """name: by which clients ask for it. engine: None for an encoder alone."""

    def __init__(
        self, name: str, served: decoding.Engine | decoding.Model, settings: Settings
    ) -> None:
        self.name, self.settings = name, settings
        self.engine = served if isinstance(served, decoding.Engine) else None
        model = served.model if isinstance(served, decoding.Engine) else served
        assert isinstance(model, decoding.Model)
        self.model = model
        rows = 1 if self.engine is None else self.engine.rows
        waits = settings.max_queue, settings.max_queue_seconds
        self.gate = Gate(AHEAD * rows, *waits)
        self.alone = Gate(ALONE, *waits)  # of those that step alone, so that they stop no others
        # Submits those with new stop strings: one table is made at a time, and holds up no others.
        self._tables = ThreadPoolExecutor(1, "decoding.tables")
        # The model reads one text at a time: who waits for that has no thread of the loop's.
        self._readings = ThreadPoolExecutor(1, "decoding.readings")
        self.metrics: ModelMetrics
        self._streams = 0  # requests whose tokens are delivered as they come

    @property
    def waiting(self) -> int:
        """Requests that wait in front of the engine."""
        return self.gate.waiting + self.alone.waiting

    @property
    def translates(self) -> bool:
        return self.engine is not None and self.model.spec.encoder is not None

    @property
    def completes(self) -> bool:
        return self.engine is not None and self.model.spec.encoder is None

    @cached_property
    def languages(self) -> ServedLanguages:
        """That it translates from and to."""
        return ServedLanguages.of(self.model.tokenizer)

    @property
    def positions(self) -> int:
        """Tokens of a text, at most."""
        if self.engine is None:
            return self.model.encoder_spec.longest
        return self.model.spec.decoder.positions

    def interval(self) -> float:
        """Seconds between two pieces of a stream."""
        return max(INTERVAL, self._streams / PIECES)

    def token_text(self, id: int) -> str | bytes:
        """What a token adds behind others; bytes where it may be a part of a character."""
        found = self._token_texts[id] if id < len(self._token_texts) else None
        return self.model.tokenizer.decode([id]) if found is None else found

    @cached_property
    def _token_texts(self) -> Sequence[str | bytes | None]:
        try:
            return token_texts(self.model.tokenizer)
        except ValueError:  # of a tokenizer that does not tell
            return ()

    def check(self, config: GenerationConfig) -> None:
        """Raises ApiError for a search that is larger than the server's limits."""
        most = self.settings
        limits = {"num_beams": most.max_beams, "num_return_sequences": most.max_results}
        if config.contrastive:  # whose candidates are rows
            limits["top_k"] = most.max_beams
        for name, limit in limits.items():
            if getattr(config, name) > limit:
                raise ApiError(
                    400, f"{name}={getattr(config, name)}: this server allows {limit}", param=name
                )
        stops = listed(config.stop_strings)
        is_own = stops == listed(self.model.generation_config.get("stop_strings"))
        if not is_own and (len(stops) > STOPS or sum(map(len, stops)) > STOP_CHARACTERS):
            raise ApiError(
                400,
                f"stop may have {STOPS} strings of {STOP_CHARACTERS} characters in all",
                param="stop",
            )

    def check_room(self, config: GenerationConfig) -> None:
        """Raises ApiError where too many wait already in front of where it steps."""
        self._way(config)[0].check()

    def places(self, config: GenerationConfig) -> asyncio.Semaphore:
        """Of the requests of one body. So many are inside at once; the others do not wait in the
        queue, where they would grow old and leave no room for other bodies."""
        gate, rows = self._way(config)
        return asyncio.Semaphore(gate.most(rows))

    def _way(self, config: GenerationConfig) -> tuple[Gate, int]:
        """Where a request comes in, and the rows that it needs there."""
        if config_alone(config):
            return self.alone, 1
        return self.gate, max(config.num_beams, config.num_return_sequences)

    def check_reads_again(self, reads_again: bool) -> None:
        """Raises ApiError where a model that is split would have to read what it has written: its
        ranks do what its engine does, and no more."""
        if reads_again and self.model.ranks is not None:
            raise ApiError(
                400,
                "this model is split over processes, and tells no log-probabilities or alignments: "
                "leave out logprobs, alignments, a best_of above n and alternatives that are drawn",
            )

    def allowed_length(self, length: int, options: Mapping[str, Any]) -> int:
        """New tokens, where a request may have so many. Raises ApiError where its options ask for
        more than the server allows."""
        most = self.settings.max_new_tokens
        if most is None or length <= most:
            return length
        if any(options.get(name) is not None for name in ("max_new_tokens", "max_length")):
            raise ApiError(
                400,
                f"max_new_tokens={length}: this server allows {most}",
                param="max_new_tokens",
            )
        return most

    @asynccontextmanager
    async def submitted(
        self,
        ids: Sequence[int],
        config: GenerationConfig,
        *,
        left: float,
        stream: bool,
        priority: int = 0,
        **options: Any,
    ) -> AsyncIterator[decoding.Request[Any]]:
        """A request on the engine, which ends with the block. left: seconds that it may take.
        stream: for who reads it as it comes. options: of Engine.submit().

        Raises ApiError where there is no room, and what Engine.submit() raises.
        """
        came = time.monotonic()
        gate, needed = self._way(config)
        rows = await gate.enter(needed, priority)
        self.metrics.observe("request_queue_time_seconds", time.monotonic() - came)
        entered = Entered(gate, rows)
        try:
            given = {"stream": stream, "priority": priority, **options}
            request = await self._submit(ids, config, left, **given)
            watching = asyncio.create_task(self._go_along(request, entered)) if stream else None
            try:
                yield request
            finally:
                request.cancel()
                if watching is not None:
                    watching.cancel()
        finally:
            entered.leave()

    async def _go_along(self, request: decoding.Request[Any], entered: Entered) -> None:
        """A reader may be slow: its request makes room when it ends, and not when it is read."""
        self._streams += 1
        try:
            await request.until_done()
        finally:
            self._streams -= 1
        entered.leave()

    async def embedded(self, texts: Sequence[str]) -> Array:
        """Of an encoder alone, float32 [n, E]. Raises ApiError where there is no room, and what
        Model.embed() raises."""
        self.gate.check()
        came = time.monotonic()
        rows = await self.gate.enter(1, 0)
        self.metrics.observe("request_queue_time_seconds", time.monotonic() - came)
        computing = asyncio.ensure_future(asyncio.to_thread(self.model.embed, texts))

        def leave(done: asyncio.Future[Any]) -> None:
            self.gate.leave(rows)
            if not done.cancelled():
                done.exception()  # nobody may wait for it any more

        computing.add_done_callback(leave)  # not before, though its client may go
        with reading:
            return (await asyncio.shield(computing)).numpy()

    async def read_again(self, work: Callable[..., T], *given: Any) -> T:
        """Calls a function with which the model reads what it has written; not for who goes before
        it begins."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readings, partial(work, *given))

    async def _submit(
        self, ids: Sequence[int], config: GenerationConfig, left: float, **options: Any
    ) -> decoding.Request[Any]:
        assert self.engine is not None
        submit: Callable[..., decoding.Request[Any]] = self.engine.submit
        given = [ids], [[1] * len(ids)]  # nothing is padding: a prompt may have the pad token, too
        if left <= 0:
            raise TimeoutError("the request was not done within its deadline")
        try:
            with reading:
                if self._makes_a_table(config):
                    work = partial(submit, *given, deadline=left, **options)
                    return await uncancelled(self._tables.submit(work))
                return submit(*given, deadline=left, **options)
        except decoding.Error as error:
            if self.engine.failure is not None:
                raise
            raise ApiError(400, str(error)) from None  # it can never fit

    def _makes_a_table(self, config: GenerationConfig) -> bool:
        """Whether a request's stop strings are new, so that their table takes a while."""
        model, strings = self.model, config.stop_strings
        vocab = model.spec.decoder.vocab
        return bool(strings) and not has_stop_table(model.tokenizer, strings, vocab, model.place)


class Entered:
    """Who is inside a gate, and leaves it once."""

    def __init__(self, gate: Gate, rows: int) -> None:
        self._gate, self._rows = gate, rows

    def leave(self) -> None:
        rows, self._rows = self._rows, 0
        self._gate.leave(rows)


def listed(stops: str | Sequence[str] | None) -> list[str]:
    return [stops] if isinstance(stops, str) else [*(stops or ())]
