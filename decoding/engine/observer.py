"""A step of the engine as Python sees it, and the observer that a session calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.models.weights.dtypes import Numbers, as_array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Step:
    """A step that is under way, as Python may look at it.

    Shapes: B sentences of the call, K rows of each, R = B * K; row b * K + beam.
    """

    number: int  # g, from 1
    vocab: int
    active: Array  # int64 [active], the sentences that this step is about
    scores: Numbers | None  # float32 [active * K, V], the engine's own; None without hooks
    step_scores: Callable[[], tuple[Array, ...] | None]  # output_scores of the steps so far
    state: Callable[[], Mapping[str, Numbers]]  # views of the engine's memory: _C.Session.state

    def candidates(self) -> Array:
        """int64 [active, M], row * V + token, best first; where rows do not compete [active * K,
        1], the token. Known once they are selected."""
        return numbers(self.state()["candidate_ids"])

    def going(self) -> Array:
        """int64 [n], the sentences that go on. This and what follows is known once the step is
        accepted."""
        return numbers(self.state()["active"])

    def tokens(self) -> Array:
        """int64 [R], this step's."""
        return numbers(self.state()["tokens"][self.number - 1])

    def parents(self) -> Array:
        """int64 [R], the row that each extended; where rows compete."""
        return numbers(self.state()["parent_rows"][self.number - 1])

    def ended(self) -> Array:
        """int64 [R], tokens of a row that has ended, 0 while it goes on; where rows do not
        compete."""
        return numbers(self.state()["lengths"])


def numbers(values: Numbers) -> Array:
    """A copy, int64."""
    return as_array(values).astype(np.int64)


class StepObserver(Protocol):
    """Sees, and may change, the steps of one sub-batch.

    A session calls begin() once, then in every step the others in the order in which they stand
    here; those from before_mid to ended only where `hooked`.
    """

    hooked: bool  # whether the caller's functions have a part in the steps

    def begin(self, device: Device) -> None: ...

    def before_mid(self, step: Step) -> None:
        """step.scores have passed the processors before forced tokens."""

    def before_post(self, step: Step) -> None:
        """step.scores have passed all processors but renormalize_logits; filters follow."""

    def ended(self, step: Step) -> Tensor | None:
        """uint8, one for each of step.candidates(): 1 where a row ends; None: nowhere."""

    def accepted(self, step: Step) -> None:
        """The step's tokens are part of their rows now."""
