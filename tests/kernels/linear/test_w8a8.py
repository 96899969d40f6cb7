"""Products of int8 on both sides on a GPU: what is rounded, and sums that are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import random
from tests.kernels.linear.test_linear import ACTIVATIONS
from tests.support.packed import STEPS, int8_rows


def is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_hopper(), reason="needs a GPU of compute capability 9.0"),
]
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
# Whole and broken tiles of rows, outputs and inputs; several tiles of a block and bands of tiles.
SIZES = [(1, 32, 16), (63, 96, 80), (130, 256, 768), (600, 800, 1552), (300, 6144, 512)]
SIZES += [(1000, 768, 3072), (4915, 3072, 768), (64, 64, 16384), (5000, 4352, 128)]


@dataclass
class Rows:
    """int8 rows as a GPU has them, poisoned."""

    data: Tensor
    scale: Tensor

    @classmethod
    def of(cls, rows: int, cols: int) -> Rows:
        data = torch.full((rows, (cols + 15) // 16 * 16), -128, dtype=torch.int8, device="cuda")
        return cls(data, torch.full((rows,), torch.nan, device="cuda"))

    def numbers(self, cols: int) -> Tensor:
        """[rows, cols], in the order of the inputs."""
        places = int8_rows(torch.arange(self.data.shape[1])[None]).squeeze(0)
        numbers = torch.empty_like(self.data)
        numbers[:, places.cuda()] = self.data
        return numbers[:, :cols]

    def assert_rounds(self, exact: Tensor) -> None:
        """Each number is the nearest, give or take the error of float32."""
        numbers = self.numbers(exact.shape[1])
        most = exact.abs().amax(1)
        torch.testing.assert_close(self.scale.double(), most / STEPS, rtol=1e-3, atol=1e-30)
        step = (most / STEPS)[:, None]
        wrong = (numbers * self.scale[:, None].double() - exact).abs()
        assert (wrong <= step * 0.5 + 2e-3 * most[:, None]).all()
        assert (numbers.abs().amax(1) == STEPS)[most > 0].all()


@dataclass
class Weight:
    numbers: Tensor  # int8 [N, K]
    scale: Tensor

    @classmethod
    def of(cls, outputs: int, inputs: int) -> Weight:
        generator = torch.Generator().manual_seed(outputs + inputs)
        numbers = torch.randint(-127, 128, (outputs, inputs), generator=generator).to(torch.int8)
        return cls(numbers.cuda(), random(outputs).abs().cuda() / STEPS)

    def times(self, rows: Rows) -> Tensor:
        """float64, exact but for the scales."""
        numbers = rows.numbers(self.numbers.shape[1])
        sums = numbers.double() @ self.numbers.double().T
        return sums * rows.scale[:, None].double() * self.scale.double()


def run(
    x: Tensor, weight: Weight, y: Tensor, quantized: Rows, activation: str = "none", **rest: Any
) -> None:
    kernels.linear(
        x,
        int8_rows(weight.numbers),
        rest.pop("bias", None),
        rest.pop("residual", None),
        y,
        activation,
        scale=weight.scale,
        quantized=quantized.data,
        quantized_scale=quantized.scale,
        isa="cuda",
        threads=1,
        **rest,
    )


def assert_rounded(y: Tensor, exact: Tensor) -> None:
    """To the type of y, behind a sum of a few in float32."""
    eps = torch.finfo(y.dtype).eps
    torch.testing.assert_close(y.double(), exact, rtol=eps, atol=1e-5 * float(exact.abs().max()))


@DTYPES
@pytest.mark.parametrize(("rows", "outputs", "inputs"), SIZES)
def test_behind_a_norm(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x = (3 * random(rows, inputs)).to(dtype).cuda()
    weight, quantized = Weight.of(outputs, inputs), Rows.of(rows, inputs)
    gamma, beta, bias = (random(n, seed=n).cuda() for n in (inputs, inputs, outputs))
    behind = torch.full((rows + 1, outputs), torch.nan, dtype=dtype, device="cuda")
    y, normed = behind[:rows], torch.empty_like(x)
    run(x, weight, y, quantized, bias=bias, gamma=gamma, beta=beta, normed=normed)
    exact = F.layer_norm(x.double(), (inputs,), gamma.double(), beta.double(), 1e-5)
    assert_rounded(normed, exact)
    quantized.assert_rounds(exact)
    assert_rounded(y, weight.times(quantized) + bias)
    assert behind[rows].isnan().all()
    run(x, weight, y, quantized, gamma=gamma, rms=True)
    quantized.assert_rounds(F.rms_norm(x.double(), (inputs,), gamma.double(), 1e-5))
    assert_rounded(y, weight.times(quantized))


@DTYPES
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_around_an_activation(activation: str, gated: bool, dtype: torch.dtype) -> None:
    """Feed-forward: the first product rounds for the second, which adds to what is there."""
    rows, hidden, inner = 300, 256, 1056
    x = random(rows, hidden).to(dtype).cuda()
    up, down = Weight.of((1 + gated) * inner, hidden), Weight.of(hidden, inner)
    gamma = torch.ones(hidden, device="cuda")
    y = torch.full((rows, inner), torch.nan, dtype=dtype, device="cuda")
    before = torch.empty(rows, 2 * inner, dtype=dtype, device="cuda") if gated else None
    quantized = Rows.of(rows, inner)  # takes the shorter rows of the input first
    run(x, up, y, quantized, activation, gamma=gamma, gated=before, quantizes_y=True)
    products = (y if before is None else before).double()
    gate, passing = products.chunk(2, 1) if gated else (products, torch.ones(()).cuda())
    quantized.assert_rounds(ACTIVATIONS[activation](gate) * passing)
    residual = random(rows, hidden, seed=3).to(dtype).cuda()
    result = residual.clone()
    run(y, down, result, quantized, residual=result, reads_quantized=True)
    assert_rounded(result, down.times(quantized) + residual.double())


@DTYPES
def test_rows_without_finite_numbers(dtype: torch.dtype) -> None:
    """A row that holds NaN or infinity is NaN, one of zeros is 0, and others are as before."""
    rows, outputs, inputs = 40, 64, 1040
    x = random(rows, inputs).to(dtype).cuda()
    weight, gamma = Weight.of(outputs, inputs), torch.ones(inputs, device="cuda")
    clean, broken = (torch.empty(rows, outputs, dtype=dtype, device="cuda") for _ in range(2))
    run(x, weight, clean, Rows.of(rows, inputs), gamma=gamma, rms=True)
    x[3, 0], x[5, 1039], x[7, 500], x[9] = torch.nan, torch.inf, -torch.inf, 0
    run(x, weight, broken, Rows.of(rows, inputs), gamma=gamma, rms=True)
    assert broken[[3, 5, 7]].isnan().all() and (broken[9] == 0).all()
    others = [i for i in range(rows) if i not in (3, 5, 7, 9)]
    assert torch.equal(broken[others], clean[others])


@DTYPES
def test_a_row_does_not_depend_on_others(dtype: torch.dtype) -> None:
    rows, outputs, inputs = 700, 512, 768
    x = random(rows, inputs).to(dtype).cuda()
    weight, gamma = Weight.of(outputs, inputs), random(inputs, seed=1).cuda()
    together = torch.empty(rows, outputs, dtype=dtype, device="cuda")
    run(x, weight, together, Rows.of(rows, inputs), gamma=gamma)
    for first, last in ((0, 1), (5, 133), (600, 700)):
        alone = torch.empty(last - first, outputs, dtype=dtype, device="cuda")
        run(x[first:last], weight, alone, Rows.of(last - first, inputs), gamma=gamma)
        assert torch.equal(alone, together[first:last])
