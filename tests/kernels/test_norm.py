"""layer_norm against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding._C import kernels
from tests.conftest import assert_same_bits, assert_within_torch, poison, random

COLS = [1, 2, 15, 16, 17, 31, 63, 64, 65, 257, 512]


def reference(x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float = 1e-5) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, eps)


def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor | None, isa: str, threads: int = 1, eps: float = 1e-5
) -> Tensor:
    y = poison(*x.shape)
    kernels.layer_norm(x, gamma, beta, y, eps, isa=isa, threads=threads)
    return y


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rows", [1, 7])
def test_equals_torch(isa: str, rows: int, cols: int) -> None:
    x, gamma = random(rows, cols) * 3 + 1, random(cols, seed=1)
    beta = random(cols, seed=2)
    assert_within_torch(reference, layer_norm(x, gamma, beta, isa), x, gamma, beta)
    assert_within_torch(reference, layer_norm(x, gamma, None, isa), x, gamma, None)


def test_no_rows(isa: str, threads: int) -> None:
    assert layer_norm(random(0, 7), random(7), None, isa, threads).shape == (0, 7)


@pytest.mark.parametrize("offset", [100.0, -10000.0])
def test_rows_far_from_zero_keep_their_variance(isa: str, offset: float) -> None:
    x, gamma, beta = random(4, 257) + offset, random(257, seed=1), random(257, seed=2)
    assert_within_torch(reference, layer_norm(x, gamma, beta, isa), x, gamma, beta)


def test_equal_elements_give_beta(isa: str) -> None:
    beta = random(65)
    y = layer_norm(torch.full((2, 65), 3.0), random(65, seed=1), beta, isa)
    assert_same_bits(y, beta.expand(2, 65))


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1.0])
def test_eps(isa: str, eps: float) -> None:
    x, gamma = random(3, 65) * 1e-2, random(65, seed=1)
    y = layer_norm(x, gamma, None, isa, eps=eps)
    assert_within_torch(reference, y, x, gamma, None, eps)


def test_in_place(isa: str, threads: int) -> None:
    x, gamma, beta = random(5, 129), random(129, seed=1), random(129, seed=2)
    expected = layer_norm(x, gamma, beta, isa)
    kernels.layer_norm(x, gamma, beta, x, 1e-5, isa=isa, threads=threads)
    assert_same_bits(x, expected)


def test_a_row_does_not_depend_on_its_batch(isa: str, threads: int) -> None:
    x, gamma, beta = random(11, 130), random(130, seed=1), random(130, seed=2)
    x[3] = float("nan")
    together = layer_norm(x, gamma, beta, isa, threads)
    for r in (0, 2, 4, 10):
        assert_same_bits(together[r : r + 1], layer_norm(x[r : r + 1], gamma, beta, isa))
