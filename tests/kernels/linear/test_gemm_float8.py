"""Weights in e4m3: all of our own CUDA kernels that take int8 ones, and the way through 16 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding import _kernels as kernels
from tests.kernels.linear.test_gemm import E4M3, Case, check, full_precision, in_8_bits, make
from tests.kernels.linear.test_gemm_int8 import DTYPES, check_exact, check_many_rows, linear
from tests.support.attention import assert_equal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures(full_precision.__name__)]

ROWS = [1, 5, 8, 16, 33, 130, 250]


def made(dtype: torch.dtype, outputs: int, inputs: int, rows: int = max(ROWS)) -> Case:
    return in_8_bits(make(dtype, outputs, inputs, rows), E4M3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_arrives(dtype: torch.dtype) -> None:
    """All of e4m3 in each place of a step, those without a leading one among them."""
    numbers = torch.arange(256).to(torch.uint8).view(E4M3)
    numbers = numbers[numbers.float().isfinite()]  # all but two
    check_exact(numbers[:, None].repeat(1, 128), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inputs_keep_their_places(dtype: torch.dtype) -> None:
    check_exact(torch.arange(72).to(torch.uint8).view(E4M3)[None].repeat(24, 1), dtype)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(40, 72), (513, 520), (512, 1024), (264, 4096)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_torch(dtype: torch.dtype, outputs: int, inputs: int, normed: bool) -> None:
    case = made(dtype, outputs, inputs)
    check(case if normed else replace(case, gamma=None, beta=None), ROWS)


@pytest.mark.parametrize(("outputs", "inputs"), [(40, 72), (272, 1024), (510, 4096)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    case = made(dtype, outputs, inputs)
    case = replace(case, activation="silu", gated=True, residual=None, beta=None, rms=True)
    check(case, ROWS)
    check(replace(case, gamma=None), ROWS)


@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(513, 512), (70, 65), (20001, 2048)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_rows(
    dtype: torch.dtype,
    outputs: int,
    inputs: int,
    tune: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_many_rows(made(dtype, outputs, inputs, 700), tune, tmp_path, monkeypatch)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_batch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODING_TUNE", "0")
    kernels.set_deterministic(True)  # reads the environment
    whole = replace(made(dtype, 513, 512, 300), residual=None)
    y = linear(whole, tune=False)
    for rows in (1, 17, 129):
        assert_equal(linear(whole.rows(5, rows), tune=False), y[5 : 5 + rows])
