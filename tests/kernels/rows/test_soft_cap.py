"""soft_cap against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, poison, random


def reference(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


@pytest.mark.parametrize("cap", [1.0, 30.0, 50.0])
@pytest.mark.parametrize(
    ("cols", "stride"), [(1, 1), (7, 8), (513, 520), (1024, 1024), (1000, 1001)]
)
def test_equals_torch(place: Place, threads: int, cols: int, stride: int, cap: float) -> None:
    for rows in (1, 5):
        x = (50 * random(rows, cols)).to(place.device, place.dtype)
        wide = poison(rows, stride).to(x)
        wide[:, :cols] = x
        kernels.soft_cap(wide, cols, cap, isa=place.isa, threads=threads)
        assert_within_torch(reference, wide[:, :cols], x, cap)
        assert wide[:, cols:].isnan().all()


def test_small_large_and_infinite_numbers(place: Place) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[inf, -inf, nan, 1e4, -1e4, 0.0, 1e-6, -1e-3, 29.0, 31.0]])
    x = x.to(place.device, place.dtype)
    y = x.clone()
    kernels.soft_cap(y, x.shape[1], 30.0, isa=place.isa, threads=1)
    assert_within_torch(reference, y, x, 30.0)
    small = x[:, 5:8]
    assert_within_torch(reference, y[:, 5:8], small, 30.0)
