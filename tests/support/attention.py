"""csrc/kernels/attention in torch, for the tests of attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.conftest import Place, assert_same_bits, random

DIMS = [1, 8, 15, 16, 17, 32, 40, 64, 65, 80, 96, 128, 256]
HEADS = [(4, 2), (7, 1), (11, 1), (16, 2)]  # of queries and of keys
BIASES = ["cap", "window", "slopes", "table", "all"]
NOWHERE = 1 << 30  # an index that no kernel may follow


class Bias(NamedTuple):
    """The bias of scaled scores, before the softmax: AttentionBias of the kernels."""

    cap: float = 0.0
    window: int = 0
    slopes: Tensor | None = None  # [N]
    table: Tensor | None = None  # [N, 2 * reach + 1]

    @classmethod
    def of(cls, name: str, heads: int, place: Place) -> Bias:
        """One of BIASES, strong enough to show."""
        slopes = (random(heads, seed=8).abs() / 8).to(place.device)
        table = random(heads, 2 * 20 + 1, seed=9).to(place.device)
        every = cls(1.5, 37, slopes, table)
        return every if name == "all" else cls(**{name: getattr(every, name)})

    def __call__(self, scores: Tensor, distance: Tensor) -> Tensor:
        """scores: [N, queries, positions]; distance: [queries, positions]."""
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        if self.slopes is not None:
            scores = scores - self.slopes.to(scores)[:, None, None] * distance
        if self.table is not None:
            reach = self.table.shape[1] // 2
            scores = scores + self.table[:, distance.clamp(-reach, reach) + reach]
        if self.window:
            scores = scores.masked_fill(distance >= self.window, float("-inf"))
        return scores


NO_BIAS = Bias()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    distance: Tensor | None = None,
    causal: bool = False,
    bias: Bias = NO_BIAS,
) -> Tensor:
    """q: [queries, N, D]; k, v: [positions, Nkv, D]; distance: [queries, positions], of the query
    less the key, for `causal` and `bias`."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qnd,pnd->nqp", q, k) * scale
    if distance is not None:
        scores = bias(scores, distance)
        scores = scores.masked_fill(causal & (distance < 0), float("-inf"))
    return torch.einsum("nqp,pnd->qnd", scores.softmax(-1).to(v.dtype), v)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def put(place: Place, *tensors: Tensor) -> Any:
    """Where a test runs, and in its type."""
    return [x.to(place.device, place.dtype if x.is_floating_point() else x.dtype) for x in tensors]


def assert_equal(ours: Tensor, expected: Tensor) -> None:
    """To the bit, in any type."""
    assert_same_bits(ours.float().cpu(), expected.float().cpu())
