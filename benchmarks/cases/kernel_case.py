"""A case of a kernel: sets of inputs and outputs, which the harness goes through in turns, and for
each provider a call on one set. All calls of a case compute the same thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from decoding import _C

VOCABULARY = 32000
STEP_ROWS = 512  # of a decode step, at most

Set = Any  # the tensors of one call, however a case keeps them
Call = Callable[[Set], Any]  # returns a tensor


@dataclass(frozen=True)
class Place:
    device: str
    dtype: torch.dtype
    threads: int

    @property
    def isa(self) -> str:
        return "cuda" if self.device != "cpu" else _C.isas()[0]

    @property
    def how(self) -> dict[str, Any]:
        """Where a kernel of ours runs."""
        return {"isa": self.isa, "threads": self.threads}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def floats(self, *shape: int) -> Tensor:
        """float32 numbers that the type has too."""
        return self.random(*shape).float()

    def ints(self, values: Sequence[int] | Tensor) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int32, device=self.device)

    def active(self, sentences: int, number: int, position: int) -> Tensor:
        """int32 [sentences, 3], all at the same step: csrc/kernels/search/step.h."""
        return self.ints(torch.tensor([[i, number, position] for i in range(sentences)]))


@dataclass(frozen=True)
class Case:
    """moved: bytes that a call must read and write at least; operations: additions,
    multiplications and the like of its results, an exponential being one. dtype: of the weights,
    else the place's. reference: what results should be, else torch's.
    """

    kernel: str
    shape: str
    moved: float
    make: Callable[[], Set]
    providers: dict[str, Call]
    operations: float
    warm: bool = False  # reads what another kernel has just written, so from the L2 cache
    prepare: Callable[[Set], object] | None = None  # called once, on the first set
    reset: Callable[[Set], object] | None = None  # called on every set before each round
    comparable: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)  # results
    dtype: torch.dtype | None = None
    reference: Call | None = None
