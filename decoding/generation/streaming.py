"""Tokens as they come: to streamer objects of transformers, and out of Model.stream().

Where rows do not compete, a token is certain at once. In beam search those tokens are that all
beams and all finished rows of a sentence agree upon: every result begins with them.
"""

from __future__ import annotations

import contextlib
import os.path
import queue
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from decoding.generation.config import GenerationConfig
from decoding.generation.observer import Step, Watch

if TYPE_CHECKING:
    from decoding.engine.session import Results

Rows = list[list[int]]  # the new tokens of each row that is returned; empty where there are none


class Listener(Protocol):
    """What a call tells while it runs."""

    def check(self, config: GenerationConfig, batch: int) -> None:
        """Raises ValueError for a call that it cannot listen to."""

    def begin(self, watch: Watch) -> None: ...
    def accepted(self, step: Step, before: Tensor, after: Tensor) -> None:
        """before, after: int64 [R, g - 1] and [R, g], what the rows have generated."""

    def end(self, found: Results) -> None: ...


class News:
    """A listener that passes on what is new and certain, a step at a time."""

    def check(self, config: GenerationConfig, batch: int) -> None:
        if config.num_beams > 1 and config.num_return_sequences > 1:
            raise ValueError(
                "the tokens of the best row alone can be streamed: pass num_return_sequences=1"
            )

    def begin(self, watch: Watch) -> None:
        self._watch = watch
        rows = 1 if watch.competing else watch.rows
        self._told: Rows = [[] for _ in range(len(watch.prompt) * rows)]
        self._finished: dict[tuple[int, ...], list[int]] = {}  # rows that beams have left behind

    def accepted(self, step: Step, before: Tensor, after: Tensor) -> None:
        if not self._watch.competing:
            self.tell(self._chosen(step, after))
        elif self._watch.plain:
            self.tell(self._agreed(step, before, after))

    def end(self, found: Results) -> None:
        """Tells what was not certain before the best row was known."""
        if not self._watch.competing:
            return
        tokens, lengths = found.tokens[:, 0].tolist(), found.lengths[:, 0].tolist()
        best = [row[:n] for row, n in zip(tokens, lengths, strict=True)]
        self.tell([self._new(b, row) for b, row in enumerate(best)])

    def tell(self, new: Rows) -> None:
        raise NotImplementedError

    def _new(self, row: int, certain: list[int]) -> list[int]:
        """What of a row's first tokens has not been told."""
        new = certain[len(self._told[row]) :]
        self._told[row] += new
        return new

    def _chosen(self, step: Step, after: Tensor) -> Rows:
        new: Rows = [[] for _ in self._told]
        rows = self._watch.rows
        tokens, ended = after[:, -1].tolist(), step.ended().tolist()
        for sentence in step.live.tolist():
            for row in range(sentence * rows, (sentence + 1) * rows):
                if ended[row] in (0, step.number):
                    new[row] = [tokens[row]]
        return new

    def _agreed(self, step: Step, before: Tensor, after: Tensor) -> Rows:
        new: Rows = [[] for _ in self._told]
        beams = self._watch.rows
        finished, counts = (x.tolist() for x in step.finished())
        left, alive = before.tolist(), after.tolist()
        for b in step.going().tolist():
            rows = alive[b * beams : (b + 1) * beams]
            for _, _, length, slot, token in finished[b][: counts[b]]:
                place = (b, length, slot, token)
                if length == step.number:
                    self._finished[place] = [*left[slot], token]
                if length:  # else it stands in for none
                    rows.append(self._finished[place])
            new[b] = self._new(b, os.path.commonprefix(rows))
        return new


class StreamerNews(News):
    """Speaks to a streamer object of transformers: put(prompt), put(new tokens), ..., end()."""

    def __init__(self, streamer: Any) -> None:
        if not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            raise TypeError(f"streamer must have the methods put and end, got {streamer!r}")
        self._streamer = streamer

    def check(self, config: GenerationConfig, batch: int) -> None:
        super().check(config, batch)
        if (config.num_beams > 1 or config.contrastive) and batch > 1:
            raise ValueError(
                f"a streamer gets the tokens of one sentence where rows compete, not of {batch}: "
                "pass them one by one, or use Model.stream()"
            )

    def begin(self, watch: Watch) -> None:
        super().begin(watch)
        self._streamer.put(watch.prompt)

    def tell(self, new: Rows) -> None:
        if not self._watch.competing:
            fill = self._watch.fill
            self._streamer.put(torch.tensor([row[0] if row else fill for row in new]))
        elif new[0]:
            self._streamer.put(torch.tensor(new[0]))

    def end(self, found: Results) -> None:
        super().end(found)
        self._streamer.end()


class Abandoned(Exception):
    """Nobody listens any more."""


class QueuedNews(News):
    """Hands what is new to another thread."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Rows | BaseException | None] = queue.SimpleQueue()
        self.abandoned = False

    def tell(self, new: Rows) -> None:
        if self.abandoned:
            raise Abandoned
        if any(new):
            self.queue.put(new)


def stream(
    run: Callable[[], Any], news: QueuedNews, device: torch.device
) -> Generator[Rows, None, None]:
    """What `run`, in a thread of its own, tells to `news`; what it raises is raised here.

    The thread does not wait for the caller. Where the iterator is closed or collected, it stops
    behind its present step. device: whose current stream, here, is the thread's too.
    """
    there: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if device.type == "cuda":
        there = torch.cuda.stream(torch.cuda.current_stream(device))

    def work() -> None:
        try:
            with there:
                run()
            news.queue.put(None)
        except Abandoned:
            pass
        except BaseException as error:  # it belongs to who iterates
            news.queue.put(error)

    thread = threading.Thread(target=work, name="decoding.stream", daemon=True)
    thread.start()
    try:
        while (item := news.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        news.abandoned = True
        thread.join()
