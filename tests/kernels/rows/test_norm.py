"""layer_norm, in both kinds and with what it adds, against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, poison, random

COLS = [1, 2, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 72, 128, 136, 256, 257, 264, 512, 520]
COLS += [768, 1023, 1024, 1025, 1032, 2048, 4096, 4104]
# On a GPU: a block, a cluster of blocks, read again.
LONG = [8192, 8200, 16384, 16392, 32768, 32776, 65536, 65544, 65545]


def reference(x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float = 1e-5) -> Tensor:
    gamma, beta = gamma.to(x.dtype), None if beta is None else beta.to(x.dtype)
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, eps)


def rms_reference(x: Tensor, gamma: Tensor, eps: float = 1e-5) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma.to(x.dtype), eps)


def added_reference(x: Tensor, gamma: Tensor, beta: Tensor | None, residual: Tensor) -> Tensor:
    return reference(x, gamma, beta) + residual


def rms_added_reference(x: Tensor, gamma: Tensor, residual: Tensor) -> Tensor:
    return rms_reference(x, gamma) + residual


def inputs(place: Place, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """x in the place's type; gamma and beta in float32, but of values that the type has."""
    x = random(rows, cols).to(place.device, place.dtype)
    gamma, beta = (random(cols, seed=seed).to(place.dtype).float() for seed in (1, 2))
    return x, gamma.to(place.device), beta.to(place.device)


def layer_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor | None,
    place: Place,
    threads: int = 1,
    eps: float = 1e-5,
    rms: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    y = poison(*x.shape).to(x)
    kernels.layer_norm(
        *(x, gamma, beta, y, eps),
        **{"rms": rms, "residual": residual, "isa": place.isa, "threads": threads},
    )
    return y


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rows", [1, 7])
def test_equals_torch(place: Place, rows: int, cols: int) -> None:
    x, gamma, beta = inputs(place, rows, cols)
    x = x * 3 + 1
    assert_within_torch(reference, layer_norm(x, gamma, beta, place), x, gamma, beta)
    assert_within_torch(reference, layer_norm(x, gamma, None, place), x, gamma, None)


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rows", [1, 7])
def test_rms_equals_torch(place: Place, rows: int, cols: int) -> None:
    x, gamma, _ = inputs(place, rows, cols)
    x = x * 3 + 1  # a norm that takes the mean off shows
    assert_within_torch(rms_reference, layer_norm(x, gamma, None, place, rms=True), x, gamma)


@pytest.mark.parametrize("cols", [1, 17, 64, 257, 1024, 2048, 2304, 4104])
def test_residual_is_added(place: Place, threads: int, cols: int) -> None:
    x, gamma, beta = inputs(place, 7, cols)
    residual = random(7, cols, seed=3).to(x)
    y = layer_norm(x, gamma, beta, place, threads, residual=residual)
    assert_within_torch(added_reference, y, x, gamma, beta, residual)
    y = layer_norm(x, gamma, None, place, threads, rms=True, residual=residual)
    assert_within_torch(rms_added_reference, y, x, gamma, residual)


@pytest.mark.parametrize("cols", [130, 1024, 2304])
def test_residual_may_be_the_output(place: Place, threads: int, cols: int) -> None:
    x, gamma, _ = inputs(place, 9, cols)
    y = random(9, cols, seed=3).to(x)
    expected = layer_norm(x, gamma, None, place, rms=True, residual=y)
    how = {"rms": True, "residual": y, "isa": place.isa, "threads": threads}
    kernels.layer_norm(x, gamma, None, y, 1e-5, **how)
    assert_same_bits(y.float(), expected.float())


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_long_rows(dtype: torch.dtype, cols: int) -> None:
    place = Place("cuda", dtype)
    x, gamma, beta = inputs(place, 5, cols)
    for offset in (0.0, 100.0):
        y = layer_norm(x + offset, gamma, beta, place)
        assert_within_torch(reference, y, x + offset, gamma, beta)
    residual = random(5, cols, seed=3).to(x)
    y = layer_norm(x, gamma, None, place, rms=True, residual=residual)
    assert_within_torch(rms_added_reference, y, x, gamma, residual)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "cols"),
    [(70001, 32), (40003, 104), (9001, 512), (5003, 1024), (2501, 2048), (301, 16384), (401, 77)],
)
def test_more_rows_than_fit_at_once(rows: int, cols: int) -> None:
    place = Place("cuda", torch.float16)
    x, gamma, beta = inputs(place, rows, cols)
    assert_within_torch(reference, layer_norm(x, gamma, beta, place), x, gamma, beta)
    residual = random(rows, cols, seed=3).to(x)
    y = layer_norm(x, gamma, None, place, rms=True, residual=residual)
    assert_within_torch(rms_added_reference, y, x, gamma, residual)


def test_no_rows(place: Place, threads: int) -> None:
    assert layer_norm(*inputs(place, 0, 7), place, threads).shape == (0, 7)


@pytest.mark.parametrize("offset", [100.0, -10000.0])
def test_rows_far_from_zero_keep_their_variance(place: Place, offset: float) -> None:
    x, gamma, beta = inputs(place, 4, 257)
    x = x + offset
    assert_within_torch(reference, layer_norm(x, gamma, beta, place), x, gamma, beta)


@pytest.mark.parametrize("cols", [65, 64])
def test_equal_elements_give_beta(place: Place, cols: int) -> None:
    x, gamma, beta = inputs(place, 2, cols)
    y = layer_norm(torch.full_like(x, 3.0), gamma, beta, place)
    assert_same_bits(y.float(), beta.expand(2, cols))


@pytest.mark.parametrize("cols", [65, 64, 2048])
def test_rows_without_a_mean_are_nan(place: Place, cols: int) -> None:
    x, gamma, beta = inputs(place, 4, cols)
    x[0, 3], x[1, -1], x[2, 5] = float("inf"), float("nan"), float("-inf")
    y = layer_norm(x, gamma, beta, place)
    assert y[:3].isnan().all() and not y[3].isnan().any()


@pytest.mark.parametrize("cols", [65, 64, 2048])
def test_rms_of_infinity_and_nan(place: Place, cols: int) -> None:
    """Divided by infinity, what is finite is 0. (torch says NaN there on a GPU.)"""
    x, gamma, _ = inputs(place, 4, cols)
    x[0, 3], x[1, -1], x[2, 5] = float("inf"), float("nan"), float("-inf")
    y = layer_norm(x, gamma, None, place, rms=True)
    for row in (0, 2):
        infinite = x[row].isinf()
        assert y[row, infinite].isnan().all() and (y[row, ~infinite] == 0).all()
    assert y[1].isnan().all() and y[3].isfinite().all()


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1.0])
def test_eps(place: Place, eps: float) -> None:
    x, gamma, _ = inputs(place, 3, 65)
    x = x * 1e-2
    y = layer_norm(x, gamma, None, place, eps=eps)
    assert_within_torch(reference, y, x, gamma, None, eps)
    y = layer_norm(x, gamma, None, place, eps=eps, rms=True)
    assert_within_torch(rms_reference, y, x, gamma, eps)


@pytest.mark.parametrize("cols", [129, 256, 2048])
def test_in_place(place: Place, threads: int, cols: int) -> None:
    x, gamma, beta = inputs(place, 5, cols)
    expected = layer_norm(x, gamma, beta, place)
    kernels.layer_norm(x, gamma, beta, x, 1e-5, isa=place.isa, threads=threads)
    assert_same_bits(x.float(), expected.float())


@pytest.mark.parametrize("cols", [33, 64, 1024, 2048])
@pytest.mark.parametrize("offset", [1, 8])
def test_touches_only_its_rows(place: Place, cols: int, offset: int) -> None:
    """Also where rows do not begin on 16 bytes."""
    x, gamma, beta = inputs(place, 3, cols)
    wide = poison(x.numel() + 2 * offset).to(x)
    inside, y = (wide.clone()[offset:-offset].view_as(x) for _ in range(2))
    inside.copy_(x)
    kernels.layer_norm(inside, gamma, beta, y, 1e-5, isa=place.isa, threads=1)
    assert_within_torch(reference, y, x, gamma, beta)
    around = y.as_strided(wide.shape, (1,), 0)
    assert around[:offset].isnan().all() and around[-offset:].isnan().all()


@pytest.mark.parametrize("cols", [32, 130, 512, 2048])
def test_a_row_does_not_depend_on_its_batch(place: Place, threads: int, cols: int) -> None:
    x, gamma, beta = inputs(place, 11, cols)
    x[3] = float("nan")
    for shift, rms in ((beta, False), (None, True)):
        together = layer_norm(x, gamma, shift, place, threads, rms=rms)
        for r in (0, 2, 4, 10):
            alone = layer_norm(x[r : r + 1].clone(), gamma, shift, place, rms=rms)
            assert_same_bits(together[r : r + 1].float(), alone.float())
