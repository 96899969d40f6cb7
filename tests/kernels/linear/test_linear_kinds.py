"""linear with weights of bfloat16 and int8, on each instruction set that products tell apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from decoding import _C
from decoding import _kernels as kernels
from decoding.models.weights.dtypes import as_tensor
from decoding.models.weights.panels import int8_panels
from tests.conftest import assert_same_bits, assert_within_torch, poison, random
from tests.kernels.linear.test_linear import ACTIVATIONS
from tests.support.packed import Packed, packed, quantise

SMALL = [torch.bfloat16, torch.int8]
# Whole and broken groups of inputs, lines of a block, panels.
SHAPES = [(1, 1), (2, 63), (7, 65), (64, 64), (130, 17), (513, 200), (2048, 70)]
# Own rows of each thread, shared rows, rows that take turns in the scratch.
ROWS = [1, 3, 40, 500]


@pytest.fixture(params=_C.isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Each name, also those that differ in products alone."""
    return str(request.param)


def linear(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    *,
    isa: str,
    threads: int = 2,
    norm: dict[str, Tensor] | None = None,
) -> Tensor:
    y = poison(len(x), weight.outputs)
    more = dict(norm or {}, scale=weight.scale, sums=weight.sums, scratch=weight.scratch(len(x)))
    kernels.linear(
        x, weight.panels, bias, residual, y, activation, **more, isa=isa, threads=threads
    )
    return y


def steps_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as whole numbers from -127 to 127, and what one of them is."""
    largest = x.abs().amax(1, keepdim=True)
    return (x * (torch.full_like(largest, 127) / largest)).round(), largest / 127


def quantised_product(x: Tensor, weight: Tensor) -> Tensor:
    """The contract of int8, rounded to float32 at each step."""
    numbers, scale, _ = quantise(weight)
    steps, size = steps_of(x)
    return (steps.double() @ numbers.double().T).float() * size * scale


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_int8_to_the_bit(isa: str, inputs: int, outputs: int, rows: int) -> None:
    x, weight = random(rows, inputs), random(outputs, inputs, seed=1)
    y = linear(x, packed(weight, torch.int8), isa=isa)
    assert_same_bits(y + 0.0, quantised_product(x, weight) + 0.0)


def test_int8_sums_may_be_large(isa: str) -> None:
    # Products of 16-bit instructions would saturate where pairs are added too early.
    weight = torch.ones(70, 4096) * torch.tensor([1.0, -1.0]).repeat(35)[:, None]
    for sign in (1.0, -1.0):
        x = torch.full((7, 4096), sign)
        y = linear(x, packed(weight, torch.int8), isa=isa)
        assert_same_bits(y, quantised_product(x, weight))
        assert (y.abs() - 4096).abs().max() < 0.01


@pytest.mark.parametrize("rows", ROWS)
def test_int8_of_files_may_be_its_smallest_number(isa: str, rows: int) -> None:
    """-128, which is no number of ours; also in all places."""
    numbers = torch.randint(-128, 128, (130, 1030), generator=torch.Generator().manual_seed(1))
    numbers[::3] = -128
    panels = as_tensor(int8_panels(numbers.to(torch.int8).numpy()))
    scale, sums = random(130, seed=2), numbers.sum(1, dtype=torch.int32)
    x = random(rows, 1030)
    x[0] = 1
    y = linear(x, Packed(panels, scale, sums, *numbers.shape), isa=isa)
    steps, size = steps_of(x)
    expected = (steps.double() @ numbers.double().T).float() * size * scale
    assert_same_bits(y + 0.0, expected + 0.0)


def test_int8_rounds_ties_to_even(isa: str) -> None:
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.0]])
    y = linear(x, packed(torch.eye(8), torch.int8), isa=isa)
    assert y.round().tolist() == [[0, 2, 2, 0, -2, -2, 126, 127]]


def rounded_product(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_bfloat16_equals_torch(isa: str, inputs: int, outputs: int, rows: int) -> None:
    x, weight = random(rows, inputs), random(outputs, inputs, seed=1).bfloat16().float()
    y = linear(x, packed(weight, torch.bfloat16), isa=isa)
    if isa.endswith("_bf16"):
        x = x.bfloat16().float()
    assert_within_torch(rounded_product, y, x, weight)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (129, 65), (300, 200), (1030, 64)])
def test_a_row_does_not_depend_on_its_batch(
    isa: str, kind: torch.dtype, inputs: int, outputs: int
) -> None:
    x, weight = random(400, inputs), packed(random(outputs, inputs, seed=1), kind)
    bias = random(outputs, seed=2)
    rows = [*range(13), 95, 96, 199, 399]
    alone = torch.cat([linear(x[r : r + 1], weight, bias, isa=isa) for r in rows])
    for count in (2, 3, 4, 5, 6, 7, 8, 13, 30, 96, 97, 200, 400):
        for threads in (1, 2, 7):
            y = linear(x[:count], weight, bias, isa=isa, threads=threads)
            known = [at for at, r in enumerate(rows) if r < count]
            ours = y[[rows[at] for at in known]]
            assert_same_bits(ours, alone[known], f"{count} rows, {threads} threads")


def epilogue(y: Tensor, bias: Tensor, residual: Tensor, activation: str) -> Tensor:
    return ACTIVATIONS[activation](y + bias) + residual


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogue(isa: str, kind: torch.dtype, activation: str) -> None:
    x, weight = random(9, 70), packed(random(81, 70, seed=1) / 8, kind)
    bias, residual = random(81, seed=2), random(9, 81, seed=3)
    plain = linear(x, weight, isa=isa)
    y = linear(x, weight, bias, residual, activation, isa=isa)
    assert_within_torch(epilogue, y, plain, bias, residual, activation)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("rows", ROWS)
def test_norm_before(isa: str, kind: torch.dtype, rows: int) -> None:
    x, weight = random(rows, 130) * 3 + 1, packed(random(70, 130, seed=1), kind)
    gamma, beta = random(130, seed=4), random(130, seed=5)
    for threads in (1, 2, 3):
        expected = poison(rows, 130)
        kernels.layer_norm(x, gamma, beta, expected, 1e-5, isa=isa, threads=1)
        normed = poison(rows, 130)
        norm = {"gamma": gamma, "beta": beta, "normed": normed}
        y = linear(x, weight, isa=isa, threads=threads, norm=norm)
        assert_same_bits(normed, expected)
        assert_same_bits(y, linear(expected, weight, isa=isa))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_stays_alone(
    isa: str, kind: torch.dtype, activation: str, wrong: float
) -> None:
    # The weights are positive: minus infinity through relu is 0 else, in any type.
    x, weight = random(9, 67), packed(random(70, 67, seed=1).abs() + 0.1, kind)
    expected = linear(x, weight, activation=activation, isa=isa)
    spoilt = x.clone()
    spoilt[4, 66] = wrong
    y = linear(spoilt, weight, activation=activation, isa=isa)
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert_same_bits(y[others], expected[others])
    if kind == torch.int8 or wrong != -math.inf:
        assert not y[4].isfinite().any()


def test_rows_and_outputs_of_zeros(isa: str) -> None:
    weight = random(70, 65, seed=1)
    weight[3] = 0
    x = random(3, 65)
    x[1] = 0
    x[2] = 1e-40
    y = linear(x, packed(weight, torch.int8), random(70, seed=2), isa=isa)
    assert_same_bits(y[1], random(70, seed=2))
    assert_same_bits(y[2], random(70, seed=2))
    assert_same_bits(y[:, 3], random(70, seed=2)[3].expand(3))


def test_a_weight_must_be_complete() -> None:
    x, y, weight = random(2, 8), poison(2, 5), packed(random(5, 8), torch.int8)
    how = {"isa": _C.isas()[0], "threads": 1, "scratch": weight.scratch(2)}
    with pytest.raises(Exception, match="scale and sums belong to an int8 weight"):
        kernels.linear(x, weight.panels, None, None, y, "none", scale=weight.scale, **how)
    with pytest.raises(Exception, match="weight must be panels of 5 outputs and 9 inputs"):
        kernels.linear(random(2, 9), weight.panels, None, None, y, "none", **how)
