"""Tokens as they come: to streamer objects of transformers, and out of Model.stream().

Where rows do not compete, a token is certain at once. In beam search the tokens are certain with
which all beams and all finished rows of a sentence begin: every result begins with them.
"""

from __future__ import annotations

import contextlib
import os.path
import queue
import threading
from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np

from decoding.common.arrays import Array
from decoding.common.device import Device, torch_cuda
from decoding.common.progress import Cancelled
from decoding.engine.observer import Step, numbers
from decoding.engine.request import EngineResults
from decoding.generation.config import GenerationConfig
from decoding.generation.functions.histories import ObservedRows
from decoding.models.weights.dtypes import as_tensor

Tokens = list[list[int]]  # the new tokens of each row that is returned; empty where there are none


class TokenListener(Protocol):
    """Hears of a call's tokens while it runs."""

    def check(self, config: GenerationConfig, batch: int) -> None:
        """Raises ValueError for a call that it cannot listen to."""

    def begin(self, rows: ObservedRows) -> None: ...

    def accepted(self, step: Step, before: Array, after: Array) -> None:
        """before, after: int64 [R, g - 1] and [R, g], what the rows have generated."""

    def end(self, results: EngineResults) -> None: ...


def check_streamed(config: GenerationConfig) -> None:
    """Raises ValueError where some results have no tokens that are certain before the end."""
    if config.num_beams > 1 and config.num_return_sequences > 1:
        raise ValueError(
            "the tokens of the best row alone can be streamed: pass num_return_sequences=1"
        )


class TokenStream:
    """Emits the tokens that are new and certain, a step at a time."""

    def check(self, config: GenerationConfig, batch: int) -> None:
        check_streamed(config)

    def begin(self, rows: ObservedRows) -> None:
        self._rows = rows
        count = len(rows.prompt) * (1 if rows.competing else rows.rows_per_sentence)
        self._emitted: Tokens = [[] for _ in range(count)]
        self._finished: dict[tuple[int, ...], list[int]] = {}  # rows that have ended

    def accepted(self, step: Step, before: Array, after: Array) -> None:
        if not self._rows.competing:
            self.emit(self._selected(step, after))
        elif self._rows.agreeing:
            self.emit(self._agreed(step, before, after))

    def end(self, results: EngineResults) -> None:
        """Emits the tokens that were not certain before the best row was known."""
        if not self._rows.competing:
            return
        tokens, lengths = results.tokens[:, 0].tolist(), results.lengths[:, 0].tolist()
        best = [row[:n] for row, n in zip(tokens, lengths, strict=True)]
        self.emit([self._not_emitted(b, row) for b, row in enumerate(best)])

    def emit(self, new: Tokens) -> None:
        raise NotImplementedError

    def _not_emitted(self, row: int, certain: list[int]) -> list[int]:
        """The tokens of `certain`, which a row begins with, that come now; counts them in."""
        new = certain[len(self._emitted[row]) :]
        self._emitted[row] += new
        return new

    def _selected(self, step: Step, after: Array) -> Tokens:
        new: Tokens = [[] for _ in self._emitted]
        rows = self._rows.rows_per_sentence
        tokens, ended = after[:, -1].tolist(), step.ended().tolist()
        for sentence in step.active.tolist():
            for row in range(sentence * rows, (sentence + 1) * rows):
                if ended[row] in (0, step.number):
                    new[row] = [tokens[row]]
        return new

    def _agreed(self, step: Step, before: Array, after: Array) -> Tokens:
        """The tokens that all beams and all finished rows of a sentence begin with."""
        new: Tokens = [[] for _ in self._emitted]
        beams = self._rows.rows_per_sentence
        state, left, alive = step.state(), before.tolist(), after.tolist()
        names = ("finished_lengths", "finished_rows", "finished_tokens")
        finished = np.stack([numbers(state[name]) for name in names], -1).tolist()
        counts = numbers(state["finished_count"]).tolist()
        for b in step.going().tolist():
            rows = alive[b * beams : (b + 1) * beams]
            for length, row, token in finished[b][: counts[b]]:
                key = (b, length, row, token)
                if length == step.number:
                    self._finished[key] = [*left[row], token]
                if length:  # else there is none
                    rows.append(self._finished[key])
            new[b] = self._not_emitted(b, os.path.commonprefix(rows))
        return new


class StreamerTokenStream(TokenStream):
    """Calls a streamer object of transformers: put(prompt), put(new tokens), ..., end()."""

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

    def begin(self, rows: ObservedRows) -> None:
        super().begin(rows)
        self._streamer.put(as_tensor(rows.prompt))

    def emit(self, new: Tokens) -> None:
        import torch

        if not self._rows.competing:
            fill = self._rows.fill
            self._streamer.put(torch.tensor([row[0] if row else fill for row in new]))
        elif new[0]:
            self._streamer.put(torch.tensor(new[0]))

    def end(self, results: EngineResults) -> None:
        super().end(results)
        self._streamer.end()


class QueuedTokenStream(TokenStream):
    """Hands new tokens to another thread."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Tokens | BaseException | None] = queue.SimpleQueue()
        self.cancelled = False

    def emit(self, new: Tokens) -> None:
        if self.cancelled:
            raise Cancelled("the iterator that reads the tokens is closed")
        if any(new):
            self.queue.put(new)


def stream(
    run: Callable[[], Any], tokens: QueuedTokenStream, device: Device
) -> Generator[Tokens, None, None]:
    """Runs `run` in a thread of its own and yields what it emits to `tokens`; raises its errors.

    The thread does not wait for the caller. Where the iterator is closed or collected, or the call
    is cancelled, it stops after the step under way. device: whose current stream, here, is the
    thread's too.
    """
    there: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if device.type == "cuda" and (cuda := torch_cuda()) is not None:
        there = cuda.stream(cuda.current_stream(device.index))

    def work() -> None:
        try:
            with there:
                run()
            tokens.queue.put(None)
        except Cancelled:
            tokens.queue.put(None)
        except BaseException as error:  # the iterator raises it
            tokens.queue.put(error)

    thread = threading.Thread(target=work, name="decoding.stream", daemon=True)
    try:
        thread.start()
        while (item := tokens.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        tokens.cancelled = True
        if thread.ident is not None:  # it has started
            thread.join()
