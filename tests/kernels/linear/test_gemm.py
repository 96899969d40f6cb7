"""Every variant of our own CUDA linear kernels against torch: the tuner may pick any of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from decoding import _kernels as kernels
from tests.conftest import Expected, random
from tests.kernels.linear.test_linear import ACTIVATIONS
from tests.support.packed import e4m3_rows, int8_rows, quantise

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


E4M3 = torch.float8_e4m3fn


class Kind(NamedTuple):
    """Of a product: the type of x, and that of a quantised weight."""

    dtype: torch.dtype
    weight: torch.dtype | None = None

    def __str__(self) -> str:
        weight = "" if self.weight is None else f"{self.weight}-"
        return f"{weight}{self.dtype}".replace("torch.", "")


KINDS = [*map(Kind, DTYPES), *(Kind(x, w) for w in (torch.int8, E4M3) for x in DTYPES[1:])]
ROWS = [1, 3, 8, 15, 16, 17, 31, 33, 64, 100, 129, 512]
SIZES = [(n, k) for n in (8, 40, 512, 513) for k in (64, 72, 512, 768, 1024, 2048, 4096)]
SIZES += [(1000, 512), (1000, 520), (32000, 512), (8201, 1024), (4101, 1032), (300, 14344)]
BEHIND = 2  # rows behind the last, which nobody may touch


@dataclass(frozen=True)
class Case:
    """A product of 512 rows at most; bias, gamma and beta are float32 but fit the type."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    activation: str = "none"
    gamma: Tensor | None = None
    beta: Tensor | None = None
    rms: bool = False
    gated: bool = False
    quantised: Tensor | None = None  # as the kernel takes `weight`, which then is to be scaled
    scale: Tensor | None = None  # [N], of a quantised weight

    @property
    def columns(self) -> int:
        """Of y."""
        return len(self.weight) // (2 if self.gated else 1)

    def first(self, rows: int) -> Case:
        return self.rows(0, rows)

    def rows(self, first: int, count: int) -> Case:
        residual = None if self.residual is None else self.residual[first : first + count]
        return replace(self, x=self.x[first : first + count], residual=residual)

    def arguments(self, y: Tensor, normed: Tensor | None) -> tuple[object, ...]:
        rows = len(self.x)
        weight = self.weight if self.quantised is None else self.quantised
        tensors = (self.x, weight, self.bias, self.residual, y[:rows], self.activation)
        norm = (self.gamma, self.beta, None if normed is None else normed[:rows], 1e-5, self.rms)
        scratch = self.x.new_empty(rows, len(self.weight)) if self.gated else None
        return *tensors, *norm, scratch

    def variants(self) -> int:
        y = self.x.new_empty(len(self.x), self.columns)
        arguments = self.arguments(y, self.new_normed())
        return kernels.fused_linear_variants(*arguments, scale=self.scale)

    def new_normed(self) -> Tensor | None:
        return None if self.gamma is None else self.x.new_full(self.padded(), float("nan"))

    def padded(self) -> tuple[int, int]:
        return len(self.x) + BEHIND, self.x.shape[1]

    def run(self, variant: int) -> tuple[Tensor, Tensor | None]:
        """y and norm(x)"""
        y = self.x.new_full((len(self.x) + BEHIND, self.columns), float("nan"))
        normed = self.new_normed()
        kernels.fused_linear(*self.arguments(y, normed), variant, scale=self.scale)
        return y, normed


def make(dtype: torch.dtype, outputs: int, inputs: int, rows: int = max(ROWS)) -> Case:
    def fitting(*shape: int, seed: int) -> Tensor:
        return random(*shape, seed=seed).to(dtype).to("cuda")

    return Case(
        # Far from zero, so that a norm which forgets the mean shows.
        x=fitting(rows, inputs, seed=0) + 3,
        weight=fitting(outputs, inputs, seed=1) / 32,
        bias=fitting(outputs, seed=2).float(),
        residual=fitting(rows, outputs, seed=3),
        gamma=fitting(inputs, seed=4).float(),
        beta=fitting(inputs, seed=5).float(),
    )


def with_weight(case: Case, numbers: Tensor, scale: Tensor) -> Case:
    """numbers: int8 or e4m3 [N, K]; scale: [N]."""
    rows = int8_rows(numbers) if numbers.dtype == torch.int8 else e4m3_rows(numbers)
    weight = numbers.to(case.x.dtype).cuda()
    return replace(case, weight=weight, quantised=rows.cuda(), scale=scale.cuda())


def in_8_bits(case: Case, dtype: torch.dtype) -> Case:
    """With a weight of int8 or e4m3."""
    weight = case.weight.cpu().float()
    if dtype == torch.int8:
        return with_weight(case, *quantise(weight)[:2])
    scale = weight.abs().amax(1) / torch.finfo(dtype).max
    return with_weight(case, (weight / scale[:, None]).to(dtype), scale)


def make_kind(kind: Kind, outputs: int, inputs: int, rows: int) -> Case:
    case = make(kind.dtype, outputs, inputs, rows)
    return case if kind.weight is None else in_8_bits(case, kind.weight)


def norm(x: Tensor, gamma: Tensor | None, beta: Tensor | None, rms: bool) -> Tensor:
    if gamma is None:
        return x
    if rms:
        return functional.rms_norm(x.to(gamma.dtype), gamma.shape, gamma, 1e-5).to(x.dtype)
    return functional.layer_norm(x.to(gamma.dtype), gamma.shape, gamma, beta, 1e-5).to(x.dtype)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    gamma: Tensor | None,
    beta: Tensor | None,
    rms: bool,
    gated: bool,
    scale: Tensor | None = None,
) -> Tensor:
    if scale is not None:
        weight = (weight * scale[:, None]).to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    y = functional.linear(norm(x, gamma, beta, rms), weight, bias)
    if gated:
        gate, up = y.chunk(2, -1)
        return ACTIVATIONS[activation](gate) * up
    y = ACTIVATIONS[activation](y)
    return y if residual is None else y + residual


def check(case: Case, row_counts: list[int]) -> None:
    """All variants over first rows of the case, compared all at once."""
    parts = [case.first(rows) for rows in row_counts]
    x = torch.cat([part.x for part in parts])
    residual = None
    if case.residual is not None:
        residual = torch.cat([case.residual[: len(part.x)] for part in parts])
    scales = (case.gamma, case.beta, case.rms)
    inputs = (x, case.weight, case.bias, residual, case.activation, *scales, case.gated, case.scale)
    expected, expected_norm = Expected.of(reference, *inputs), Expected.of(norm, x, *scales)
    variants = case.variants()
    assert variants > 0
    for variant in range(variants):
        results = [part.run(variant) for part in parts]
        ys = torch.cat([y[:-BEHIND] for y, _ in results])
        expected.check(ys)
        behind = [y[-BEHIND:] for y, _ in results]
        if case.gamma is not None:
            normed = [normed for _, normed in results if normed is not None]
            kept = torch.cat([part[:-BEHIND] for part in normed])
            expected_norm.check(kept)
            behind += [part[-BEHIND:] for part in normed]
        assert all(part.isnan().all() for part in behind), f"variant {variant} writes too far"


@pytest.fixture(autouse=True)
def full_precision() -> None:
    """What half precision is compared with adds up in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@pytest.mark.parametrize(
    ("outputs", "inputs", "normed"),
    [
        (outputs, inputs, normed)
        for outputs, inputs in SIZES
        for normed in (False, True)
        if not normed or inputs <= 2048  # no model norms more
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_torch(dtype: torch.dtype, outputs: int, inputs: int, normed: bool) -> None:
    case = make(dtype, outputs, inputs)
    if not normed:
        case = replace(case, gamma=None, beta=None)
    check(case, [1, 8, 17, 129] if outputs > 1000 else ROWS)


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(n, k) for n in (40, 513) for k in (64, 72, 512, 768, 1024, 2048)] + [(8201, 1024)],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    case = replace(make(dtype, outputs, inputs, rows=129), beta=None, rms=True)
    check(case, [1, 8, 17, 129])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations(dtype: torch.dtype, activation: str) -> None:
    case = replace(make(dtype, 136, 64, rows=33), activation=activation)
    check(case, [33])
    check(replace(case, residual=None, gamma=None, beta=None), [33])
    check(replace(case, bias=None, residual=None, beta=None), [33])


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(n, k) for n in (8, 40, 510, 1024) for k in (64, 72, 512, 768, 1024, 2048, 4096)]
    + [(9730, 896), (16384, 512), (2050, 2056)],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    case = make(dtype, outputs, inputs, rows=129)
    case = replace(case, activation="silu", gated=True, residual=None, beta=None, rms=True)
    rows = [1, 17] if outputs > 1024 else [1, 8, 16, 33, 129]
    if inputs <= 2048:
        check(case, rows)
    check(replace(case, gamma=None), rows)
    check(replace(case, gamma=None, bias=None, activation="gelu_tanh"), rows)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinity_and_nan_arrive(dtype: torch.dtype, activation: str) -> None:
    x = torch.zeros(40, 64, dtype=dtype, device="cuda")
    x[3, 5], x[7, 63], x[20, 0] = float("inf"), float("nan"), float("nan")
    case = Case(x, torch.ones(72, 64, dtype=dtype, device="cuda"), activation=activation)
    for variant in range(case.variants()):
        y = case.run(variant)[0][:-BEHIND]
        assert (y[3] == float("inf")).all() and y[[7, 20]].isnan().all()
        y[[3, 7, 20]] = 0
        assert (y == 0).all(), "another row sees them"


@pytest.mark.parametrize("outputs", [512, 513])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_residual_may_be_the_output(kind: Kind, outputs: int) -> None:
    case = make_kind(kind, outputs, 512, rows=70)
    assert case.residual is not None
    for variant in range(case.variants()):
        expected = case.run(variant)[0][:-BEHIND]
        y, normed = case.residual.clone(), case.new_normed()
        arguments = replace(case, residual=y).arguments(y, normed)
        kernels.fused_linear(*arguments, variant, scale=case.scale)
        assert torch.equal(y, expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_of_y_may_lie_apart(kind: Kind) -> None:
    case = replace(make_kind(kind, 513, 512, rows=150), residual=None)
    for variant in range(case.variants()):
        expected = case.run(variant)[0][:-BEHIND]
        y = case.x.new_full((150 + BEHIND, 528), float("nan"))
        normed = case.new_normed()
        kernels.fused_linear(*case.arguments(y, normed), variant, scale=case.scale)
        assert torch.equal(y[:-BEHIND, :513], expected)
        assert y[-BEHIND:].isnan().all() and y[:, 520:].isnan().all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_do_not_depend_on_each_other(kind: Kind) -> None:
    case = make_kind(kind, 200, 512, rows=130)
    for variant in range(case.variants()):
        together = case.run(variant)[0]
        for rows in (1, 5, 16, 40):
            assert torch.equal(case.first(rows).run(variant)[0][:rows], together[:rows])


def test_inputs_that_do_not_fill_16_bytes() -> None:
    for dtype, inputs in ((torch.float32, 66), (torch.float16, 68), (torch.bfloat16, 68)):
        assert make(dtype, 64, inputs, rows=2).variants() == 0
