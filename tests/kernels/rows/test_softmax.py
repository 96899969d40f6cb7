"""softmax against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, poison, random

COLS = [1, 2, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 72, 128, 136, 256, 257, 264, 512, 520]
COLS += [768, 1023, 1024, 1025, 1032, 2048, 4096, 4104, 8192, 8200, 16384]
LONG = [16392, 32768, 50257, 65536, 65544]


def reference(x: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    z = scale * x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.softmax(z if bias is None else z + bias, -1).to(x.dtype)


def softmax(
    x: Tensor, bias: Tensor | None, place: Place, scale: float = 1.0, threads: int = 1
) -> Tensor:
    y = poison(*x.shape).to(x)
    kernels.softmax(x, bias, y, scale, isa=place.isa, threads=threads)
    return y


def inputs(place: Place, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    x = random(rows, cols).to(place.device, place.dtype)
    return x, random(cols, seed=1).to(place.device)


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rows", [1, 7])
def test_equals_torch(place: Place, rows: int, cols: int) -> None:
    x, bias = inputs(place, rows, cols)
    assert_within_torch(reference, softmax(x, bias, place, 0.3), x, bias, 0.3)
    assert_within_torch(reference, softmax(x, None, place), x, None, 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_long_rows(dtype: torch.dtype, cols: int) -> None:
    place = Place("cuda", dtype)
    x, bias = inputs(place, 5, cols)
    assert_within_torch(reference, softmax(x, bias, place, 2.0), x, bias, 2.0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "cols"),
    [(70001, 32), (40003, 104), (9001, 512), (5003, 1024), (2501, 2048), (301, 16384), (401, 77)],
)
def test_more_rows_than_fit_at_once(rows: int, cols: int) -> None:
    place = Place("cuda", torch.bfloat16)
    x, bias = inputs(place, rows, cols)
    assert_within_torch(reference, softmax(x, bias, place), x, bias, 1.0)


def test_no_rows(place: Place, threads: int) -> None:
    assert softmax(*inputs(place, 0, 7), place, threads=threads).shape == (0, 7)


@pytest.mark.parametrize("cols", [40, 65, 2048])
def test_columns_of_minus_infinity_get_nothing(place: Place, cols: int) -> None:
    x, bias = inputs(place, 4, cols)
    x[0, 5:], x[1, ::2], x[2, :-1], bias[7] = -math.inf, -math.inf, -math.inf, -math.inf
    y = softmax(x, bias, place)
    assert_within_torch(reference, y, x, bias, 1.0)
    assert (y[0, 5:] == 0).all() and (y[1, ::2] == 0).all() and (y[:, 7] == 0).all()
    assert (y[2, :-1] == 0).all() and y[2, -1] == 1


@pytest.mark.parametrize("cols", [40, 65, 2048])
def test_rows_without_a_sum_are_nan(place: Place, cols: int) -> None:
    x, _ = inputs(place, 5, cols)
    x[0], x[1, 3], x[2, -1] = -math.inf, math.inf, math.nan
    x[3], x[3, 9] = -math.inf, math.nan
    y = softmax(x, None, place)
    assert y[:4].isnan().all() and not y[4].isnan().any()


@pytest.mark.parametrize("cols", [64, 65, 2048])
def test_large_numbers(place: Place, cols: int) -> None:
    x, _ = inputs(place, 3, cols)
    x = x * 1e4
    assert_within_torch(reference, softmax(x, None, place), x, None, 1.0)


@pytest.mark.parametrize("cols", [129, 256, 2048])
def test_in_place(place: Place, threads: int, cols: int) -> None:
    x, bias = inputs(place, 5, cols)
    expected = softmax(x, bias, place)
    kernels.softmax(x, bias, x, 1.0, isa=place.isa, threads=threads)
    assert_same_bits(x.float(), expected.float())


@pytest.mark.parametrize("cols", [33, 64, 1024, 2048])
@pytest.mark.parametrize("offset", [1, 8])
def test_touches_only_its_rows(place: Place, cols: int, offset: int) -> None:
    """Also where rows do not begin on 16 bytes."""
    x, bias = inputs(place, 3, cols)
    wide = poison(x.numel() + 2 * offset).to(x)
    inside, y = (wide.clone()[offset:-offset].view_as(x) for _ in range(2))
    inside.copy_(x)
    kernels.softmax(inside, bias, y, 1.0, isa=place.isa, threads=1)
    assert_within_torch(reference, y, x, bias, 1.0)
    around = y.as_strided(wide.shape, (1,), 0)
    assert around[:offset].isnan().all() and around[-offset:].isnan().all()


@pytest.mark.parametrize("cols", [32, 130, 512, 2048])
def test_a_row_does_not_depend_on_its_batch(place: Place, threads: int, cols: int) -> None:
    x, bias = inputs(place, 11, cols)
    x[3] = math.nan
    together = softmax(x, bias, place, threads=threads)
    for r in (0, 2, 4, 10):
        alone = softmax(x[r : r + 1].clone(), bias, place)
        assert_same_bits(together[r : r + 1].float(), alone.float())
