"""Products of a deterministic session: a row has the same bits among any number of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.kernels.linear.test_gemm import DTYPES, Case, make
from tests.support.attention import assert_equal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("deterministic")]

COUNTS = [1, 2, 7, 16, 17, 64, 129, 300, 2000]
SIZES = [(8, 64), (40, 72), (513, 512), (1024, 768), (512, 2048), (8201, 1024), (64, 8192)]


def cases(dtype: torch.dtype, outputs: int, inputs: int) -> dict[str, Case]:
    """Of COUNTS[-1] rows. Gates are read 16 bytes at a time, so they are pairs of such."""
    case = make(dtype, outputs, inputs, COUNTS[-1])
    plain = replace(case, gamma=None, beta=None)
    return {
        "plain": replace(plain, bias=None, residual=None),
        "residual": plain,
        "activation": replace(plain, residual=None, activation="gelu_tanh"),
        "norm": replace(case, residual=None, activation="relu"),
    } | ({"gate": replace(case, residual=None, gated=True)} if outputs % 16 == 0 else {})


def linear(case: Case, *, tune: bool) -> Tensor:
    """y, from the kernel that is best as a rule or from the one that was measured to be."""
    y = case.x.new_full((len(case.x), case.columns), float("nan"))
    arguments = case.arguments(y, case.new_normed())
    names = ("gamma", "beta", "normed", "eps", "rms", "gated")
    norm = dict(zip(names, arguments[6:], strict=True))
    if tune:
        kernels.tune_linear(*arguments[:6], **norm)
    kernels.linear(*arguments[:6], **norm, isa="cuda", threads=1)
    return y


@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_a_row_does_not_depend_on_its_batch(
    dtype: torch.dtype,
    outputs: int,
    inputs: int,
    tune: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
) -> None:
    monkeypatch.setenv("DECODING_TUNE", str(int(tune)))
    monkeypatch.setenv("DECODING_CACHE", str(tmp_path))
    kernels.set_deterministic(True)  # reads the environment
    for name, case in cases(dtype, outputs, inputs).items():
        together = linear(case, tune=tune)
        assert together.isfinite().all(), name
        for count in COUNTS[:-1]:
            for first in {0, 5, COUNTS[-1] - count}:  # a row lies anywhere in a tile
                part = case.rows(first, count)
                assert_equal(linear(part, tune=tune), together[first : first + count])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_the_variants_give_the_same_bits(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    case = replace(make(dtype, outputs, inputs, 200), gamma=None, beta=None)
    arguments = case.arguments(case.x.new_empty(200, outputs), None)
    found = [
        case.run(variant)[0][:200]
        for variant in range(case.variants())
        if kernels.adds_in_one_order(*arguments, variant)
    ]
    assert len(found) >= (1 if dtype == torch.float32 else 3)
    for y in found[1:]:
        assert_equal(y, found[0])


def test_rows_that_no_kernel_takes_are_refused() -> None:
    x, weight = torch.zeros(3, 12).cuda().half(), torch.zeros(8, 12).cuda().half()
    with pytest.raises(Exception, match="deterministic=True has no kernel for"):
        kernels.linear(x, weight, None, None, x.new_empty(3, 8), "none", isa="cuda", threads=1)
