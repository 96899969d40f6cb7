"""What a search strategy is to the rest of generate()."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from decoding import _C


@dataclass(frozen=True)
class Strategy:
    """How a call searches.

    search: for the engine. rows: of each sentence while it runs. returned: of each sentence in the
    results. scores: what output_scores shows of a step, [rows, V], from the logits that the rules
    left, [rows, V], and the log-sum-exp before them, [rows]. beams: whether rows compete, so that
    results have scores and parents.
    """

    search: _C.Greedy | _C.Sampling | _C.Beam
    rows: int
    returned: int
    scores: Callable[[Tensor, Tensor], Tensor]
    beams: bool = False
