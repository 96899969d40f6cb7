"""Every variant of our own CUDA kernels for int8 weights, and the way through 16 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import assert_within_torch
from tests.kernels.linear.test_gemm import (
    BEHIND,
    Case,
    check,
    full_precision,
    in_8_bits,
    make,
    reference,
    with_weight,
)
from tests.kernels.linear.test_linear import ACTIVATIONS
from tests.support.attention import assert_equal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures(full_precision.__name__)]

DTYPES = [torch.float16, torch.bfloat16]  # of x
ROWS = [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, 64, 100, 129, 250, 600]
# Whole and broken tiles of outputs, groups and steps of inputs; warps without work.
SIZES = [(n, k) for n in (8, 40, 512, 513) for k in (8, 64, 72, 520, 1024, 4096)]
SIZES += [(32000, 512), (8201, 1024), (64, 14336), (130, 9216)]
# For the tiles of Hopper's kernels, and K shared out unevenly among a cluster's blocks.
SIZES += [(64, 128), (328, 1096), (328, 200), (264, 4104), (2056, 1600)]


def made(dtype: torch.dtype, outputs: int, inputs: int, rows: int = max(ROWS)) -> Case:
    return in_8_bits(make(dtype, outputs, inputs, rows), torch.int8)


def check_exact(numbers: Tensor, dtype: torch.dtype) -> None:
    """A weight [N, K] of int8 or e4m3, one input at a time: the sums are exact."""
    outputs, inputs = numbers.shape
    x = torch.eye(inputs, dtype=dtype, device="cuda")
    case = with_weight(Case(x, x), numbers, torch.full((outputs,), 0.5))
    variants = case.variants()
    assert variants > 0
    for variant in range(variants):
        assert torch.equal(case.run(variant)[0][:-BEHIND], (case.weight * 0.5).T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_arrives(dtype: torch.dtype) -> None:
    """All of int8 in each place of a step."""
    check_exact(torch.arange(-128, 128).to(torch.int8)[:, None].repeat(1, 128), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inputs_keep_their_places(dtype: torch.dtype) -> None:
    check_exact(torch.arange(72).to(torch.int8)[None].repeat(24, 1), dtype)


@pytest.mark.parametrize(
    ("outputs", "inputs", "normed"),
    [
        (*size, normed)
        for size in SIZES
        for normed in (False, True)
        if not normed or size[1] <= 4096
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_torch(dtype: torch.dtype, outputs: int, inputs: int, normed: bool) -> None:
    case = made(dtype, outputs, inputs)
    if not normed:
        case = replace(case, gamma=None, beta=None)
    check(case, [1, 5, 17, 130] if outputs > 1000 else ROWS)
    if normed:
        check(replace(case, beta=None, rms=True), [1, 17])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [64, 1032])  # in one part, and in as many as there are
def test_activations(dtype: torch.dtype, inputs: int, activation: str) -> None:
    case = replace(made(dtype, 136, inputs, rows=200), activation=activation)
    check(case, [33, 200])
    case = replace(case, gamma=None, beta=None)
    check(case, [33, 200])
    check(replace(case, residual=None), [33, 200])


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a Hopper GPU",
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hopper_has_kernels_of_its_own(dtype: torch.dtype) -> None:
    """Where y can be written 16 bytes at a time: so the tests above reach them."""

    def own(inputs: int, gated: bool) -> int:
        cases = [made(dtype, outputs, inputs, rows=1) for outputs in (512, 510)]
        cases = [replace(case, gamma=None, beta=None, residual=None) for case in cases]
        whole, broken = (replace(case, gated=gated).variants() for case in cases)
        return whole - broken

    assert 0 < own(64, False) < own(1024, False), "a cluster shares out many inputs"
    assert own(64, True) > 0


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(n, k) for n in (16, 40, 272, 510, 4096) for k in (64, 72, 1024, 4096)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    case = made(dtype, outputs, inputs)
    case = replace(case, activation="silu", gated=True, residual=None, beta=None, rms=True)
    rows = [1, 4, 8, 16, 33, 130, 250]
    check(case, rows)
    check(replace(case, gamma=None, activation="relu"), rows)
    check(replace(case, gamma=None, bias=None, activation="gelu_tanh"), rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinity_and_nan_arrive(dtype: torch.dtype) -> None:
    x = torch.zeros(40, 72, dtype=dtype, device="cuda")
    x[3, 5], x[7, 71], x[20, 0] = float("inf"), float("nan"), float("nan")
    numbers = torch.ones(72, 72, dtype=torch.int8)
    case = with_weight(Case(x, x), numbers, torch.ones(72))
    for variant in range(case.variants()):
        y = case.run(variant)[0][:-BEHIND]
        assert (y[3] == float("inf")).all() and y[[7, 20]].isnan().all()
        y[[3, 7, 20]] = 0
        assert (y == 0).all(), "another row sees them"


def linear(case: Case, *, tune: bool) -> Tensor:
    """By the kernel that is chosen; y."""
    y = case.x.new_full((len(case.x), case.columns), float("nan"))
    arguments = case.arguments(y, case.new_normed())
    names = ("gamma", "beta", "normed", "eps", "rms", "gated")
    more = dict(zip(names, arguments[6:], strict=True), scale=case.scale)
    if tune:
        kernels.tune_linear(*arguments[:6], **more)
    kernels.linear(*arguments[:6], **more, isa="cuda", threads=1)
    return y


def check_many_rows(case: Case, tune: bool, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """A case of 700 rows without its norm, and some of its first rows."""
    patch.setenv("DECODING_TUNE", str(int(tune)))
    patch.setenv("DECODING_CACHE", str(cache))
    kernels.set_deterministic(False)  # reads the environment
    for rows in (3, 40, 700):
        first = replace(case, gamma=None, beta=None).first(rows)
        for each in (
            first,
            replace(first, bias=None),
            replace(first, residual=None, activation="silu"),
        ):
            y = linear(each, tune=tune)
            given = (each.x, each.weight, each.bias, each.residual, each.activation)
            assert_within_torch(reference, y, *given, None, None, False, False, each.scale)


# Inputs that our own kernels do not take, parts of a large weight, odd numbers of outputs.
@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(513, 512), (70, 65), (20001, 2048), (24, 1024)])
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
@pytest.mark.parametrize(("outputs", "inputs"), [(40, 72), (513, 512), (512, 2048)])
def test_a_row_does_not_depend_on_its_batch(
    dtype: torch.dtype, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODING_TUNE", "0")
    kernels.set_deterministic(True)  # reads the environment
    whole = replace(made(dtype, outputs, inputs, 300), residual=None)
    y = linear(whole, tune=False)
    for rows in (1, 7, 17, 129):
        assert_equal(linear(whole.rows(5, rows), tune=False), y[5 : 5 + rows])
