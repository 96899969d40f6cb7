"""What a model writes behind prompts, whole or as it comes."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import decoding
from decoding.generation.streaming import Tokens
from decoding.server.errors import reading
from decoding.server.openai.choices import Choice, Piece, StopStrings
from decoding.server.openai.logprobs import TokenLogprobs, logprobs_of, shown, sums_of
from decoding.server.options import Search, streamed_at_once
from decoding.server.served import Served
from decoding.text.complete import Prompt, new_tokens
from decoding.text.stream_text import TextStream

# Between two pieces with log-probabilities, as a multiple of the time that finding these has taken
# where the model reads its text once more: all of it, and so longer and longer.
PAUSE = 3


@dataclass(eq=False)
class Answers:
    """All choices of a body's prompts. began: time.monotonic() of its arrival. top: most likely
    tokens of each place, or -1 for no log-probabilities at all. echo: whether texts begin with the
    prompt, whose tokens have log-probabilities, too."""

    served: Served
    prompts: Sequence[Prompt]
    search: Search
    began: float
    top: int = -1
    echo: bool = False
    given: int = field(init=False)  # tokens
    generated: int = 0  # those of choices included that are not shown
    created: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.given = sum(len(prompt.ids) for prompt in self.prompts)
        self._places = self.served.places(self.search.config)

    async def of(self, index: int) -> list[Piece]:
        """The choices of a prompt, each in one piece, as many as are wanted."""
        most = self._most(index)
        async with self._submitted(index, most, stream=False) as request:
            rows = await request.tokens()
        choices, wanted = self._choices(index), self.search.n
        found = await self._ended(index, most, choices, rows)
        if wanted < len(found):
            given = self.served.model, self.prompts[index].ids, rows
            sums = await self.served.read_again(sums_of, *given)
            means = {c: sum / len(c.ids) for c, sum in zip(choices, sums, strict=True)}
            found = sorted(found, key=lambda piece: means[piece.choice], reverse=True)[:wanted]
            for place, piece in enumerate(found):
                piece.choice.index = index * wanted + place
        return found

    async def pieces(self, index: int) -> AsyncGenerator[Piece, None]:
        """The choices of a prompt as they come; each ends with a piece that has its `finish`."""
        most, choices, clock = self._most(index), self._choices(index), Clock(self)
        due = -math.inf
        stream = not streamed_at_once(self.search)
        async with self._submitted(index, most, stream=stream) as request:
            clock.start()
            async for tokens in request.every(self.served.interval):
                clock.hear(max(map(len, tokens)))
                for choice, new in zip(choices, tokens, strict=True):
                    choice.add(new)
                began = time.monotonic()
                if began < due:
                    continue
                ready = [choice for choice in choices if choice.waiting]
                if self.top >= 0:
                    await self._find_logprobs(index, ready)
                    due = rested(began, self.top)
                for choice in ready:
                    yield choice.piece()
            clock.end()
        for piece in await self._ended(index, most, choices, [[] for _ in choices]):
            yield piece

    def _most(self, index: int) -> int:
        """Tokens that each choice of a prompt may have."""
        with reading:
            found = new_tokens(self.served.model.spec, self.search.config, [self.prompts[index]])
        most = found if isinstance(found, int) else found[0]
        return self.served.allowed_length(most, self.search.options)

    @asynccontextmanager
    async def _submitted(
        self, index: int, most: int, *, stream: bool
    ) -> AsyncIterator[decoding.Request[Any]]:
        search = self.search
        async with (
            self._places,
            self.served.submitted(
                self.prompts[index].ids,
                search.config,
                stream=stream,
                left=self.served.settings.deadline - (time.monotonic() - self.began),
                priority=search.priority,
                **search.options | {"max_new_tokens": most},
            ) as request,
        ):
            yield request

    async def _ended(
        self, index: int, most: int, choices: Sequence[Choice], last: Tokens
    ) -> list[Piece]:
        """The rest of each choice. last: ids that have not been added."""
        config = self.search.config
        if config.max_time is not None:
            most = 0  # a text that ends before its length may have had no time
        for choice, new in zip(choices, last, strict=True):
            choice.end(new, config.eos_token_id, most)
            self.generated += len(choice.ids)
        if self.top >= 0:
            await self._find_logprobs(index, choices)
        return [choice.piece() for choice in choices]

    def _choices(self, index: int) -> list[Choice]:
        search, prompt, count = self.search, self.prompts[index], self.search.looked_for
        tokenizer = self.served.model.tokenizer
        echo, at, first = "", 0, list[TokenLogprobs]()
        if self.echo:
            echo = tokenizer.decode(prompt.ids, skip_special_tokens=True)
        if self.echo and self.top >= 0:
            texts = [self.served.token_text(id) for id in prompt.ids]
            # Below 0 where an echo does not show all, such as a first token of no text.
            at = len(echo) - sum(len(shown(text)) for text in texts)
            first = [TokenLogprobs(texts[0], None, ())]
        return [
            Choice(
                index * count + place,
                TextStream(tokenizer, prompt.shown),
                StopStrings(search.config.stop_strings, search.include_stop),
                waiting=echo,
                read=1 if self.echo else len(prompt.ids),
                logprobs=first.copy(),
                at=at,
            )
            for place in range(count)
        ]

    async def _find_logprobs(self, index: int, choices: Sequence[Choice]) -> None:
        """Of all tokens so far that have none."""
        rows = [[*self.prompts[index].ids, *choice.ids] for choice in choices]
        due = [
            (choice, row) for choice, row in zip(choices, rows, strict=True) if row[choice.read :]
        ]
        if not due:
            return
        # From one place on: rows of which one is long and another has much to read would not fit.
        first = min(choice.read for choice, _ in due)
        known, new = [row[:first] for _, row in due], [row[first:] for _, row in due]
        cancel = threading.Event()
        given = self.served.model, known, new, self.top, self.served.token_text, cancel
        try:
            found = await self.served.read_again(logprobs_of, *given)
        finally:
            cancel.set()
        for (choice, row), logprobs in zip(due, found, strict=True):
            choice.logprobs += logprobs[choice.read - first :]
            choice.read = len(row)

    def count(self, choices: Sequence[Choice]) -> None:
        """Tells the metrics of an answer that is complete."""
        reasons = [choice.finish or "stop" for choice in choices]
        self.served.metrics.answered(self.began, self.given, self.generated, reasons)


def rested(began: float, top: int) -> float:
    """When log-probabilities may be found again, where that has begun then and is done now. To find
    several likely tokens takes steps, as many as the tokens did, and no pause makes it less."""
    now = time.monotonic()
    return now + PAUSE * (now - began) if top <= 1 else now


async def chunks(answers: Answers) -> AsyncGenerator[Piece, None]:
    """Of all prompts. Raises the first error; then, and where nobody reads on, all of them end."""
    if len(answers.prompts) == 1:
        async with aclosing(answers.pieces(0)) as pieces:
            async for piece in pieces:
                yield piece
        return
    queue: asyncio.Queue[Piece | None] = asyncio.Queue(maxsize=2 * len(answers.prompts))

    async def read(index: int) -> None:
        async with aclosing(answers.pieces(index)) as pieces:
            async for piece in pieces:
                await queue.put(piece)

    async def read_all() -> None:
        try:
            await asyncio.gather(*tasks)
        finally:
            await queue.put(None)

    tasks = [asyncio.create_task(read(i)) for i in range(len(answers.prompts))]
    reader = asyncio.create_task(read_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        await reader
    finally:
        for task in (reader, *tasks):
            task.cancel()
        while not queue.empty():  # so that the last item, which nobody reads either, has room
            queue.get_nowait()
        await asyncio.gather(reader, *tasks, return_exceptions=True)


class Clock:
    """Tells the metrics when tokens of a stream come."""

    def __init__(self, answers: Answers) -> None:
        self._metrics, self._began = answers.served.metrics, answers.began
        self._started = self._last = self._began
        self._first: float | None = None

    def start(self) -> None:
        """The engine has the request."""
        self._started = time.monotonic()

    def hear(self, tokens: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._metrics.observe("time_to_first_token_seconds", now - self._began)
            self._metrics.observe("request_prefill_time_seconds", now - self._started)
        elif tokens:
            latency = (now - self._last) / tokens
            self._metrics.observe("inter_token_latency_seconds", latency)
        self._last = now

    def end(self) -> None:
        if self._first is not None:
            self._metrics.observe("request_decode_time_seconds", self._last - self._first)
