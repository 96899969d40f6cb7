"""What Python may see of a step of the engine, and when it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass
class Step:
    """What Python may look at in a step; the session fills it with views of the engine's memory.

    Shapes: B sentences of the call, K rows of each, R = B * K; row b * K + beam.
    """

    number: int  # g, from 1
    vocab: int
    active: Tensor  # int64 [active], the sentences that this step is about
    scores: Tensor | None  # float32 [active * K, V], the engine's own; None without hooks
    step_scores: Callable[[], tuple[Tensor, ...] | None]  # output_scores of the steps so far
    candidates: Callable[[], Tensor]  # once tokens are selected: int64 [active, M], beam * V +
    # token, best first; where rows do not compete [active * K, 1], the token
    going: Callable[[], Tensor]  # once they are accepted: int64 [n], the sentences that go on
    tokens: Callable[[], Tensor]  # the same: int64 [R], this step's
    parents: Callable[[], Tensor]  # the same: int64 [R], the row that each extended
    ended: Callable[[], Tensor]  # the same: int64 [R], tokens of a row that has ended, 0 while it
    # goes on; where rows do not compete
    finished: Callable[[], tuple[Tensor, Tensor]]  # the same, with beams: int32 [B, F, 5], (score,
    # sum, length, row, token) of a hypothesis, and int32 [B], how many of them there are


class StepObserver(Protocol):
    """Sees, and may change, the steps of one sub-batch.

    A session calls begin() once, then in every step the others in the order in which they stand
    here; those from before_mid to ended only where `hooked`.
    """

    hooked: bool  # whether the caller's functions have a part in the steps

    def begin(self, device: torch.device) -> None: ...

    def before_mid(self, step: Step) -> None:
        """step.scores have passed the processors before forced tokens."""

    def before_post(self, step: Step) -> None:
        """step.scores have passed all processors but renormalize_logits; filters follow."""

    def ended(self, step: Step) -> Tensor | None:
        """uint8, one for each of step.candidates(): 1 where a row ends; None: nowhere."""

    def accepted(self, step: Step) -> None:
        """The step's tokens are part of their rows now."""
