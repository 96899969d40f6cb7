"""What a model writes behind prompts, whole or as it comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any

import decoding
from decoding.generation.streaming import Tokens
from decoding.server.errors import reading
from decoding.server.openai.logprobs import TokenLogprobs, logprobs_of, sums_of
from decoding.server.options import Search, streamed_at_once
from decoding.server.served import Served
from decoding.text.complete import Prompt, new_tokens
from decoding.text.stream_text import TextStream
from decoding.text.tokenizers import Tokenizer

INTERVAL = 0.02  # seconds between two pieces of a stream


@dataclass(eq=False)
class Choice:
    """A result that is being written. finish: why it ended, None before. ids: so far."""

    index: int
    text: TextStream
    stops: StopStrings
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    logprobs: list[TokenLogprobs] | None = None

    def add(self, new: Sequence[int]) -> str:
        """The text that is certain now."""
        self.ids += new
        return self.stops.add(self.text.add(new))

    def end(self, last: Sequence[int], ends: Sequence[int], most: int) -> str:
        """The rest. last: ids that come now. ends: those that end a text; most: that it may
        have."""
        self.ids += last
        rest = self.stops.add(self.text.rest(last)) + self.stops.rest()
        ended = self.stops.found or len(self.ids) < most or self.ids[-1] in ends
        self.finish = "stop" if ended else "length"
        return rest


class StopStrings:
    """Text up to the first of some strings. Whatever parts it comes in, the same is let through:
    up to the string that ends first, and of those that end there up to the longest."""

    def __init__(self, strings: Sequence[str], include: bool) -> None:
        """include: let the string itself through, too."""
        self._strings, self._longest = strings, max(map(len, strings), default=0)
        self._include, self._held, self.found = include, "", False

    def add(self, text: str) -> str:
        """What of it, and of what was held back, no string can begin in."""
        if not self._strings:
            return text
        if self.found:
            return ""
        held = self._held + text
        ends = [(at + len(s), -len(s)) for s in self._strings if (at := held.find(s)) >= 0]
        if ends:
            self.found, self._held = True, ""
            end, length = min(ends)
            return held[: end if self._include else end + length]
        first = max(0, len(held) - self._longest + 1)
        at = next(i for i in range(first, len(held) + 1) if self._may_begin(held[i:]))
        self._held = held[at:]
        return held[:at]

    def rest(self) -> str:
        """What was held back, where no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _may_begin(self, text: str) -> bool:
        return any(string.startswith(text) for string in self._strings)


@dataclass(frozen=True)
class Piece:
    """New text of a choice. last: its `finish` is known."""

    choice: Choice
    text: str
    last: bool = False


@dataclass(eq=False)
class Answers:
    """All choices of a body's prompts. began: time.monotonic() of its arrival. top: most likely
    tokens of each place, or -1 for no log-probabilities at all. echo: whether the prompt's tokens
    have them, too."""

    served: Served
    prompts: Sequence[Prompt]
    search: Search
    began: float
    top: int = -1
    echo: bool = False
    generated: int = 0  # tokens, those of choices included that are not shown
    created: float = field(default_factory=time.time)

    @property
    def given(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)

    async def of(self, index: int) -> list[tuple[Choice, str]]:
        """The choices of a prompt with their texts, as many as are wanted."""
        most = self._most(index)
        async with self._submitted(index, most, stream=False) as request:
            rows = await request.tokens()
        choices, wanted = self._choices(index), self.search.n
        found = list(zip(choices, await self._ended(index, most, choices, rows), strict=True))
        if wanted < len(found):
            given = self.served.model, self.prompts[index].ids, rows
            sums = await asyncio.to_thread(sums_of, *given)
            means = {c: sum / len(c.ids) for c, sum in zip(choices, sums, strict=True)}
            found = sorted(found, key=lambda item: means[item[0]], reverse=True)[:wanted]
            for place, (choice, _) in enumerate(found):
                choice.index = index * wanted + place
        return found

    async def pieces(self, index: int) -> AsyncGenerator[Piece, None]:
        """The choices of a prompt as they come; each ends with a piece that has its `finish`."""
        most, choices, clock = self._most(index), self._choices(index), Clock(self)
        stream = not streamed_at_once(self.search)
        async with self._submitted(index, most, stream=stream) as request:
            clock.start()
            async for tokens in request.every(INTERVAL):
                clock.hear(max(map(len, tokens)))
                for choice, new in zip(choices, tokens, strict=True):
                    if new and (text := choice.add(new)):
                        yield Piece(choice, text)
            clock.end()
        rests = await self._ended(index, most, choices, [[] for _ in choices])
        for choice, rest in zip(choices, rests, strict=True):
            yield Piece(choice, rest, last=True)

    def _most(self, index: int) -> int:
        """Tokens that each choice of a prompt may have."""
        with reading:
            found = new_tokens(self.served.model.spec, self.search.config, [self.prompts[index]])
        most = found if isinstance(found, int) else found[0]
        self.served.check_length(most)
        return most

    def _submitted(
        self, index: int, most: int, *, stream: bool
    ) -> AbstractAsyncContextManager[decoding.Request[Any]]:
        search = self.search
        return self.served.submitted(
            self.prompts[index].ids,
            search.config,
            stream=stream,
            left=self.served.settings.deadline - (time.monotonic() - self.began),
            priority=search.priority,
            **search.options | {"max_new_tokens": most},
        )

    async def _ended(
        self, index: int, most: int, choices: Sequence[Choice], last: Tokens
    ) -> list[str]:
        """The rest of each choice's text. last: ids that have not been added."""
        config = self.search.config
        if config.max_time is not None:
            most = 0  # a text that ends before its length may have had no time
        rests = list[str]()
        for choice, new in zip(choices, last, strict=True):
            rests.append(choice.end(new, config.eos_token_id, most))
            self.generated += len(choice.ids)
        if self.top >= 0:
            await self._find_logprobs(self.prompts[index], choices)
        return rests

    def _choices(self, index: int) -> list[Choice]:
        search, prompt = self.search, self.prompts[index]
        tokenizer: Tokenizer = self.served.model.tokenizer
        stops, count = search.config.stop_strings, search.looked_for
        return [
            Choice(
                index * count + place,
                TextStream(tokenizer, prompt.shown),
                StopStrings(stops, search.include_stop),
            )
            for place in range(count)
        ]

    async def _find_logprobs(self, prompt: Prompt, choices: Sequence[Choice]) -> None:
        text_of, cancel = self.served.token_text, threading.Event()
        shown = 1 if self.echo else len(prompt.ids)  # what nobody asks about
        ids, rest = prompt.ids[:shown], prompt.ids[shown:]
        rows = [[*rest, *choice.ids] for choice in choices]
        given = self.served.model, ids, rows, self.top, text_of, cancel
        try:
            found = await asyncio.to_thread(logprobs_of, *given)
        finally:
            cancel.set()
        first = [TokenLogprobs(text_of(ids[0]), None, ())] if self.echo else []
        for choice, own in zip(choices, found, strict=True):
            choice.logprobs = first + own

    def count(self, choices: Sequence[Choice]) -> None:
        """Tells the metrics of an answer that is complete."""
        reasons = [choice.finish or "stop" for choice in choices]
        self.served.metrics.answered(self.began, self.given, self.generated, reasons)


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
