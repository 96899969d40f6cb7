"""What Python may see of a call while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from decoding.engine.session import Results
    from decoding.generation.hooks import Hooks
    from decoding.generation.streaming import Listener


@dataclass
class Step:
    """What Python may look at in a step; the session fills it with views of the engine's memory.

    Shapes: B sentences of the call, K rows of each, R = B * K; row b * K + beam.
    """

    number: int  # g, from 1
    vocab: int
    live: Tensor  # int64 [live], the sentences that this step is about
    scores: Tensor | None  # float32 [live * K, V], the engine's own; None without hooks
    kept: Callable[[], tuple[Tensor, ...] | None]  # output_scores of the steps so far
    candidates: Callable[[], Tensor]  # once tokens are picked: int64 [live, M], beam * V + token,
    # best first; where rows do not compete [live * K, 1], the token
    going: Callable[[], Tensor]  # once they are accepted: int64 [n], the sentences that go on
    tokens: Callable[[], Tensor]  # the same: int64 [R], this step's
    parents: Callable[[], Tensor]  # the same: int64 [R], the row that each extended
    ended: Callable[[], Tensor]  # the same: int64 [R], tokens of a row that has ended, 0 while it
    # goes on; where rows do not compete
    finished: Callable[[], tuple[Tensor, Tensor]]  # the same, with beams: int32 [B, places, 5],
    # (score, sum, length, slot, token) of Hypothesis, and int32 [B], how many of them there are


class Histories:
    """The rows of a call: each sentence's prompt as given, then what was generated."""

    def __init__(self, prompt: Tensor, rows: int, most: int, fill: int, device: torch.device):
        """prompt: int64 [B, P]. rows: of each sentence. most: tokens that a row may get. fill:
        stands behind a row's end."""
        self.rows = rows
        self._prompt = self.width = prompt.shape[1]
        self._ids = torch.full(
            (len(prompt) * rows, self.width + most), fill, dtype=torch.int64, device=device
        )
        self._ids[:, : self.width] = prompt.repeat_interleave(rows, 0)

    @property
    def ids(self) -> Tensor:
        """int64 [R, n]"""
        return self._ids[:, : self.width]

    @property
    def generated(self) -> Tensor:
        """int64 [R, g]"""
        return self._ids[:, self._prompt : self.width]

    def places(self, live: Tensor) -> Tensor:
        """int64 [live * K], the rows of the sentences `live`."""
        return (live[:, None] * self.rows + torch.arange(self.rows, device=live.device)).flatten()

    def extend(self, step: Step, competing: bool) -> None:
        """Takes in the tokens that a step has accepted."""
        # Of a sentence that is done nothing is left of the beams.
        places = self.places(step.going() if competing else step.live)
        if competing:
            self._ids[places] = self._ids[step.parents()[places]]
        self._ids[places, self.width] = step.tokens()[places]
        self.width += 1


class Watch:
    """Looks on, and reaches in, while a session runs one sub-batch that is the whole call.

    The session calls its methods in the order in which they stand here, the first once, the last
    once, the others in every step; those from `before_middle` to `ended` only with hooks.

    prompt: int64 [B, P]. rows: of each sentence. most: tokens that a row may get. fill: stands
    behind a row's end. competing: the rows of a sentence do.
    """

    def __init__(
        self,
        hooks: Hooks,
        listener: Listener | None,
        *,
        prompt: Tensor,
        rows: int,
        most: int,
        fill: int,
        competing: bool,
        plain: bool,
    ) -> None:
        self.hooks, self.listener = hooks, listener
        self.prompt, self.rows, self.fill = prompt, rows, fill
        self.competing, self.plain = competing, plain
        self._most = most

    @property
    def hooked(self) -> bool:
        """Whether the caller's functions have a part in the steps."""
        return bool(self.hooks)

    def begin(self, device: torch.device) -> None:
        self._histories = Histories(self.prompt, self.rows, self._most, self.fill, device)
        if self.listener is not None:
            self.listener.begin(self)

    def before_middle(self, step: Step) -> None:
        self.hooks.process(self.hooks.before_middle, self._histories, step)

    def before_warping(self, step: Step) -> None:
        self.hooks.process(self.hooks.before_warping, self._histories, step)

    def ended(self, step: Step) -> Tensor | None:
        """uint8, one for each of step.candidates(): 1 where a row ends; None: nowhere."""
        return self.hooks.ended(self._histories, step, self.competing)

    def accepted(self, step: Step) -> None:
        before = self._histories.generated.clone()  # extend() moves rows
        self._histories.extend(step, self.competing)
        if self.listener is not None:
            self.listener.accepted(step, before, self._histories.generated)

    def end(self, found: Results) -> None:
        if self.listener is not None:
            self.listener.end(found)
