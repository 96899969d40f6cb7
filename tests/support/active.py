"""The sentences that a kernel's step is about: ActiveSentence of csrc/kernels/search/step.h."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def active_sentences(
    ids: Sequence[int], numbers: int | Sequence[int], positions: int | Sequence[int]
) -> Tensor:
    """int32 [sentences, 3]: id, number and position of each. A lone number is that of all."""
    columns = [
        [values] * len(ids) if isinstance(values, int) else list(values)
        for values in (ids, numbers, positions)
    ]
    return torch.tensor(columns, dtype=torch.int32).T.contiguous()
