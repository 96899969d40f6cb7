"""training.softmax and training.softmax_backward against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding._C import training
from tests.conftest import Place, assert_within_torch, poison, random

COLS = [1, 2, 8, 31, 64, 257, 513, 1024, 2056]
LONG = [1023, 4104, 8192, 8200, 16384, 32768, 65536, 65544]  # on a GPU, as for norms


def softmax(x: Tensor, place: Place, threads: int = 1) -> Tensor:
    y = poison(*x.shape).to(x)
    training.softmax(x, y, **place.options(threads))
    return y


def backward(y: Tensor, dy: Tensor, place: Place, threads: int = 1) -> Tensor:
    dx = poison(*y.shape).to(y)
    training.softmax_backward(y, dy, dx, **place.options(threads))
    return dx


def reference(x: Tensor) -> Tensor:
    return x.softmax(-1)


def reference_backward(y: Tensor, dy: Tensor) -> Tensor:
    return torch._softmax_backward_data(dy, y, -1, y.dtype)


def inputs(place: Place, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    x, dy = (3 * random(rows, cols, seed=seed) for seed in range(2))
    return x.to(place.device, place.dtype), dy.to(place.device, place.dtype)


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rows", [1, 7])
def test_equals_torch(training_place: Place, rows: int, cols: int) -> None:
    """rows: of a call. One row's error, or torch's, may be small by luck, so 7 are judged."""
    x, dy = inputs(training_place, 7, cols)
    y = torch.cat([softmax(some, training_place) for some in x.split(rows)])
    assert_within_torch(reference, y, x)
    parts = zip(y.split(rows), dy.split(rows), strict=True)
    dx = torch.cat([backward(*part, training_place) for part in parts])
    assert_within_torch(reference_backward, dx, y, dy)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_rows(cols: int, dtype: torch.dtype) -> None:
    place = Place("cuda", dtype)
    for rows in (1, 5, 300):
        y, dy = inputs(place, rows, cols)
        y = y.softmax(-1)
        assert_within_torch(reference_backward, backward(y, dy, place), y, dy)


def test_bits_do_not_depend_on_threads(training_place: Place) -> None:
    x, dy = inputs(training_place, 50, 70)
    y = softmax(x, training_place)
    dx = backward(y, dy, training_place)
    for threads in (2, 3):
        assert torch.equal(softmax(x, training_place, threads), y)
        assert torch.equal(backward(y, dy, training_place, threads), dx)


@pytest.mark.parametrize("cols", [40, 64, 1024])
def test_in_place(training_place: Place, cols: int) -> None:
    x, dy = inputs(training_place, 9, cols)
    y = softmax(x, training_place)
    dx = backward(y, dy, training_place)
    training.softmax(x, x, **training_place.options(2))
    training.softmax_backward(y, dy, dy, **training_place.options(2))
    assert torch.equal(x, y) and torch.equal(dy, dx)


def test_masked_columns(training_place: Place) -> None:
    x, _ = inputs(training_place, 3, 40)
    x[0, 5:], x[1] = -torch.inf, -torch.inf
    y = softmax(x, training_place)
    assert (y[0, 5:] == 0).all() and y[1].isnan().all()
    assert_within_torch(reference, y[2:], x[2:])


def test_no_rows(training_place: Place) -> None:
    x, dy = inputs(training_place, 0, 9)
    assert backward(softmax(x, training_place), dy, training_place).shape == (0, 9)
