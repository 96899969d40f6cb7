"""linear against torch, and the order in which it adds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, random

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


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run found fastest on this GPU must not decide what is tested."""
    monkeypatch.setenv("DECODING_TUNE", "0")


@pytest.fixture
def tuned(untuned: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Products are timed, and what is found is forgotten behind the test."""
    monkeypatch.setenv("DECODING_TUNE", "1")
    monkeypatch.setenv("DECODING_CACHE", str(tmp_path))


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
    y = torch.full((len(x), len(weight)), math.nan, dtype=x.dtype, device=x.device)
    packed = weight if isa == "cuda" else pack(weight)
    kernels.linear(x, packed, bias, residual, y, activation, isa=isa, threads=threads)
    return y


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str
) -> Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    y = ACTIVATIONS[activation](functional.linear(x, weight, bias))
    return y if residual is None else y + residual


def at(place: Place, tensor: Tensor) -> Tensor:
    return tensor.to(place.device, place.dtype)


def bias_at(place: Place, outputs: int, seed: int = 2) -> Tensor:
    """float32 always, but numbers that the type of the place holds, so that torch has the same."""
    return at(place, random(outputs, seed=seed)).float()


def rows_at(place: Place) -> list[int]:
    """On CUDA a few rows are our own kernels' by default, many cuBLASLt's."""
    return [3, 16, 150] if place.isa == "cuda" else [150]


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("inputs", [1, 16, 65, 257])
def test_equals_torch(place: Place, inputs: int, outputs: int) -> None:
    for rows in rows_at(place):
        x, weight = at(place, random(rows, inputs)), at(place, random(outputs, inputs, seed=1))
        bias, residual = bias_at(place, outputs), at(place, random(rows, outputs, seed=3))
        for arguments in (
            (x, weight, None, None, "none"),
            (x, weight, bias, None, "relu"),
            (x, weight, bias, residual, "none"),
        ):
            y = linear(*arguments, isa=place.isa, threads=2)
            assert_within_torch(reference, y, *arguments)


@pytest.mark.parametrize("inputs", [512, 2048])
def test_equals_torch_at_real_sizes(place: Place, inputs: int) -> None:
    for rows in [9, 300] if place.isa == "cuda" else [9]:
        x, weight = random(rows, inputs), random(200, inputs, seed=1) / inputs**0.5
        x, weight = at(place, x), at(place, weight)
        y = linear(x, weight, isa=place.isa, threads=2)
        assert_within_torch(reference, y, x, weight, None, None, "none")


def test_no_rows(place: Place) -> None:
    x, weight = at(place, random(0, 5)), at(place, random(70, 5))
    for threads in (1, 2, 3):
        assert linear(x, weight, isa=place.isa, threads=threads).shape == (0, 70)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(place: Place, activation: str) -> None:
    # One input and unit weights: the outputs are the function itself over a fine grid; once more
    # where its values are so small that the two forms of gelu differ by more than is allowed.
    grid = torch.cat([torch.linspace(-12, 12, 5001), torch.tensor([0.0, -0.0, 1e-30, -90.0, 90.0])])
    weight = at(place, torch.ones(17, 1))
    for values in (grid, torch.linspace(-4, -1.5, 2000)):
        x = at(place, values[:, None])
        y = linear(x, weight, activation=activation, isa=place.isa)
        assert_within_torch(reference, y, x, weight, None, None, activation)
    residual = at(place, random(len(x), 17))
    y = linear(x, weight, None, residual, activation, isa=place.isa)
    assert_within_torch(reference, y, x, weight, None, residual, activation)


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinity_and_nan_arrive(place: Place, activation: str, rows: int) -> None:
    x = at(place, torch.tensor([[float("inf")], [float("nan")]]).repeat_interleave(rows, 0))
    y = linear(x, at(place, torch.ones(17, 1)), activation=activation, isa=place.isa)
    assert (y[:rows] == float("inf")).all()
    # cuBLASLt's relu is max(x, 0), which is 0 for NaN.
    assert y[rows:].isnan().all() or (place.isa == "cuda" and activation == "relu")


@pytest.mark.parametrize("rows", [7, 70])
def test_residual_may_be_the_output(place: Place, rows: int) -> None:
    x, weight = at(place, random(rows, 300)), at(place, random(70, 300, seed=1))
    bias, residual = bias_at(place, 70), at(place, random(rows, 70, seed=2))
    for threads in (1, 2, 3):
        expected = linear(x, weight, bias, residual, isa=place.isa)
        y = residual.clone()
        packed = weight if place.isa == "cuda" else pack(weight)
        kernels.linear(x, packed, bias, y, y, "none", isa=place.isa, threads=threads)
        assert_same_bits(y.float(), expected.float())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_of_y_may_lie_apart(dtype: torch.dtype) -> None:
    place = Place("cuda", dtype)
    for rows in rows_at(place):
        x, weight = at(place, random(rows, 64)), at(place, random(331, 64, seed=1))
        for activation, bias in (("none", None), ("silu", bias_at(place, 331))):
            y = torch.full((rows + 1, 384), math.nan, dtype=dtype, device="cuda")
            arguments = (x, weight, bias, None)
            kernels.linear(*arguments, y[:rows], activation, isa="cuda", threads=1)
            assert_within_torch(reference, y[:rows, :331], *arguments, activation)
            assert y[rows:].isnan().all() and y[:, 336:].isnan().all()


def normed_reference(
    x: Tensor, gamma: Tensor, beta: Tensor | None, weight: Tensor, bias: Tensor, activation: str
) -> Tensor:
    if beta is None:
        normed = functional.rms_norm(x, x.shape[1:], gamma.to(x.dtype), 1e-5)
    else:
        normed = functional.layer_norm(x, x.shape[1:], gamma.to(x.dtype), beta.to(x.dtype), 1e-5)
    return reference(normed, weight, bias, None, activation)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 3), (65, 17), (512, 130), (1024, 64)])
def test_norm_before(place: Place, inputs: int, outputs: int, rms: bool) -> None:
    gamma = bias_at(place, inputs, seed=4)
    beta = None if rms else bias_at(place, inputs, seed=5)
    weight = at(place, random(outputs, inputs, seed=1) / inputs**0.5)
    bias = bias_at(place, outputs)
    for rows in rows_at(place):
        x = at(place, random(rows, inputs) + 1)  # an RMS norm that takes the mean off shows
        normed = torch.full_like(x, math.nan)
        y = torch.full((rows, outputs), math.nan, dtype=x.dtype, device=x.device)
        kernels.linear(
            *(x, weight if place.isa == "cuda" else pack(weight), bias, None, y, "relu"),
            **{"gamma": gamma, "beta": beta, "normed": normed, "rms": rms},
            **{"isa": place.isa, "threads": 2},
        )
        assert_within_torch(normed_reference, y, x, gamma, beta, weight, bias, "relu")
        identity = at(place, torch.eye(inputs))
        zero = torch.zeros(inputs, device=place.device)
        assert_within_torch(normed_reference, normed, x, gamma, beta, identity, zero, "none")


def gated_reference(
    x: Tensor, gamma: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> Tensor:
    normed = functional.rms_norm(x, x.shape[1:], gamma.to(x.dtype), 1e-5)
    gate, up = reference(normed, weight, bias, None, "none").chunk(2, -1)
    return ACTIVATIONS[activation](gate) * up


def run_gated(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, str], run: Callable[..., object]
) -> Tensor:
    """inputs: of gated_reference; run: a kernel that takes what linear takes."""
    x, gamma, weight, bias, activation = inputs
    y, gated = (x.new_full((len(x), n), math.nan) for n in (len(weight) // 2, len(weight)))
    norm = {"gamma": gamma, "normed": torch.full_like(x, math.nan), "rms": True}
    run(x, weight if x.is_cuda else pack(weight), bias, None, y, activation, **norm, gated=gated)
    return y


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("inputs", "columns"), [(8, 20), (65, 17), (512, 64), (256, 130)])
def test_gated(place: Place, threads: int, inputs: int, columns: int, activation: str) -> None:
    gamma, bias = bias_at(place, inputs, seed=4), bias_at(place, 2 * columns)
    weight = at(place, random(2 * columns, inputs, seed=1) / inputs**0.5)
    run = functools.partial(kernels.linear, isa=place.isa, threads=threads)
    for rows in rows_at(place):
        x = at(place, random(rows, inputs) + 1)
        for given in (bias, None):
            arguments = (x, gamma, weight, given, activation)
            assert_within_torch(gated_reference, run_gated(arguments, run), *arguments)


@pytest.mark.parametrize("rows", [1, 24, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.gpu
@pytest.mark.usefixtures("tuned")
def test_tuned_and_gated(dtype: torch.dtype, rows: int) -> None:
    place = Place("cuda", dtype)
    weight = at(place, random(336, 64, seed=1) / 8)
    x, gamma = at(place, random(rows, 64)), bias_at(place, 64, seed=4)
    arguments = (x, gamma, weight, bias_at(place, 336), "silu")
    y = run_gated(arguments, kernels.tuned_linear)
    assert_within_torch(gated_reference, y, *arguments)


@pytest.mark.parametrize("rows", [1, 12, 40, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.gpu
@pytest.mark.usefixtures("tuned")
def test_tuned_equals_torch(dtype: torch.dtype, rows: int) -> None:
    place = Place("cuda", dtype)
    outputs = 331 if rows == 40 else 336
    # Few inputs: in float32 cuBLASLt adds them up one after the other, as torch's linear does, but
    # where there is no bias torch may take several sums, whose error is less than half of it.
    x, weight = at(place, random(rows, 64)), at(place, random(outputs, 64, seed=1) / 8)
    bias, residual = bias_at(place, outputs), at(place, random(rows, outputs, seed=3))
    for arguments in (
        (x, weight, None, None, "none"),
        (x, weight, bias, residual, "none"),
        (x, weight, bias, None, "relu"),
        (x, weight, bias, None, "gelu"),
        (x, weight, bias, None, "gelu_tanh"),
        (x, weight, bias, residual, "silu"),
    ):
        y = torch.full((rows, outputs), math.nan, dtype=dtype, device="cuda")
        report = kernels.tuned_linear(*arguments[:4], y, arguments[4])
        assert_within_torch(reference, y, *arguments)
        assert len(report.splitlines()) > 1


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
