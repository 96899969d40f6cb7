"""gate against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, poison, random
from tests.kernels.linear.test_linear import ACTIVATIONS

GATES = {**ACTIVATIONS, "sigmoid": torch.sigmoid}


def reference(x: Tensor, activation: str) -> Tensor:
    first, second = x.chunk(2, -1)
    return GATES[activation](first) * second


def gate(x: Tensor, activation: str, place: Place, threads: int = 1) -> Tensor:
    y = poison(len(x), x.shape[1] // 2).to(x)
    kernels.gate(x, y, activation, isa=place.isa, threads=threads)
    return y


@pytest.mark.parametrize("cols", [1, 7, 8, 17, 512, 513, 1024, 2056])
def test_equals_torch(place: Place, threads: int, cols: int) -> None:
    for rows in (1, 5):
        x = random(rows, 2 * cols).to(place.device, place.dtype)
        assert_within_torch(reference, gate(x, "silu", place, threads), x, "silu")


@pytest.mark.parametrize("activation", GATES)
def test_activations(place: Place, activation: str) -> None:
    grid = torch.cat([torch.linspace(-12, 12, 2001), torch.tensor([0.0, -0.0, 1e-30, -90.0])])
    for values in (grid, torch.linspace(-4, -1.5, 2000)):
        x = torch.cat([values, random(len(values))]).to(place.device, place.dtype)[None]
        assert_within_torch(reference, gate(x, activation, place), x, activation)


@pytest.mark.parametrize("offset", [1, 8])
def test_touches_only_its_rows(place: Place, offset: int) -> None:
    """Also where rows do not begin on 16 bytes."""
    x = random(3, 128).to(place.device, place.dtype)
    inside, y = (poison(n + 2 * offset).to(x)[offset:-offset] for n in (3 * 128, 3 * 64))
    inside.copy_(x.flatten())
    y = y.view(3, 64)
    kernels.gate(inside.view(3, 128), y, "gelu_tanh", isa=place.isa, threads=2)
    assert_within_torch(reference, y, x, "gelu_tanh")
    around = y.as_strided((3 * 64 + 2 * offset,), (1,), 0)
    assert around[:offset].isnan().all() and around[-offset:].isnan().all()


def test_a_row_does_not_depend_on_its_batch(place: Place, threads: int) -> None:
    x = random(11, 2 * 1000).to(place.device, place.dtype)
    x[3] = float("nan")
    together = gate(x, "gelu", place, threads)
    for r in (0, 2, 4, 10):
        alone = gate(x[r : r + 1].clone(), "gelu", place)
        assert_same_bits(together[r : r + 1].float(), alone.float())
