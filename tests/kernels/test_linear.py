"""linear against torch, and the order in which it adds."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from decoding._C import kernels
from tests.conftest import assert_same_bits, assert_within_torch, poison, random

PANEL = 64  # outputs in a panel
BLOCK = 64  # inputs that are added up apart

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def pack(weight: Tensor) -> Tensor:
    """[N, K] -> [panels, K, 64], zero behind N."""
    outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = torch.zeros(panels * PANEL, inputs)
    padded[:outputs] = weight
    return padded.view(panels, PANEL, inputs).transpose(1, 2).contiguous()


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    *,
    isa: str,
    threads: int = 1,
) -> Tensor:
    y = poison(len(x), len(weight))
    kernels.linear(x, pack(weight), bias, residual, y, activation, isa=isa, threads=threads)
    return y


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str
) -> Tensor:
    y = ACTIVATIONS[activation](functional.linear(x, weight, bias))
    return y if residual is None else y + residual


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("inputs", [1, 16, 65, 257])
def test_equals_torch(isa: str, inputs: int, outputs: int) -> None:
    x, weight = random(150, inputs), random(outputs, inputs, seed=1)
    bias, residual = random(outputs, seed=2), random(150, outputs, seed=3)
    for arguments in (
        (x, weight, None, None, "none"),
        (x, weight, bias, None, "relu"),
        (x, weight, bias, residual, "none"),
    ):
        assert_within_torch(reference, linear(*arguments, isa=isa, threads=2), *arguments)


@pytest.mark.parametrize("inputs", [512, 2048])
def test_equals_torch_at_real_sizes(isa: str, inputs: int) -> None:
    x, weight = random(9, inputs), random(200, inputs, seed=1) / inputs**0.5
    y = linear(x, weight, isa=isa, threads=2)
    assert_within_torch(reference, y, x, weight, None, None, "none")


def test_no_rows(isa: str, threads: int) -> None:
    assert linear(random(0, 5), random(70, 5), isa=isa, threads=threads).shape == (0, 70)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(isa: str, activation: str) -> None:
    # One input and unit weights: the outputs are the function itself over a fine grid.
    x = torch.cat([torch.linspace(-12, 12, 5001), torch.tensor([0.0, -0.0, 1e-30, -90.0, 90.0])])
    weight = torch.ones(17, 1)
    y = linear(x[:, None], weight, activation=activation, isa=isa)
    assert_within_torch(reference, y, x[:, None], weight, None, None, activation)
    residual = random(len(x), 17)
    y = linear(x[:, None], weight, None, residual, activation, isa=isa)
    assert_within_torch(reference, y, x[:, None], weight, None, residual, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinity_and_nan_arrive(isa: str, activation: str) -> None:
    x = torch.tensor([[float("inf")], [float("nan")]])
    y = linear(x, torch.ones(17, 1), activation=activation, isa=isa)
    assert (y[0] == float("inf")).all() and y[1].isnan().all()


def test_residual_may_be_the_output(isa: str, threads: int) -> None:
    x, weight, y = random(7, 300), random(70, 300, seed=1), random(7, 70, seed=2)
    expected = linear(x, weight, None, y, isa=isa)
    kernels.linear(x, pack(weight), None, y, y, "none", isa=isa, threads=threads)
    assert_same_bits(y, expected)


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (129, 65), (300, 200)])
def test_a_row_does_not_depend_on_its_batch(isa: str, inputs: int, outputs: int) -> None:
    x, weight, bias = random(200, inputs), random(outputs, inputs, seed=1), random(outputs, seed=2)
    rows = [*range(13), 95, 96, 199]
    alone = torch.cat([linear(x[r : r + 1], weight, bias, isa=isa) for r in rows])
    for count in (2, 3, 4, 5, 6, 7, 8, 13, 96, 97, 200):
        for threads in (1, 2, 7):
            y = linear(x[:count], weight, bias, isa=isa, threads=threads)
            known = [at for at, r in enumerate(rows) if r < count]
            ours = y[[rows[at] for at in known]]
            assert_same_bits(ours, alone[known], f"{count} rows, {threads} threads")


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_order_of_addition(isa: str, rows: int) -> None:
    # Products of powers of two and small integers are exact, sums are not: any other order than
    # ascending within blocks, then block after block, shows.
    inputs = 400
    powers = torch.randint(-14, 14, (rows, inputs), generator=torch.Generator().manual_seed(0))
    x = torch.exp2(powers.float())
    weight = (random(70, inputs, seed=1) * 3).round()
    total = numpy.zeros((rows, 70), dtype=numpy.float32)
    for start in range(0, inputs, BLOCK):
        block = numpy.zeros_like(total)
        for k in range(start, min(start + BLOCK, inputs)):
            block = block + x[:, k : k + 1].numpy() * weight[:, k].numpy()
        total = total + block
    assert_same_bits(linear(x, weight, isa=isa, threads=2), torch.from_numpy(total))
