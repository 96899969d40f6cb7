"""What all tests share: devices and threads to run on, and the one rule of what is close enough."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor

from decoding import _C

torch.set_num_threads(1)  # the tensors here are too small for more, and waiting threads burn time
# A shell's background jobs ignore Ctrl-C, and so would the processes that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("decoding", derandomize=True, deadline=None)
hypothesis.settings.load_profile("decoding")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no NVIDIA GPU"))


# Those that all kernels are compiled for; "avx512_vnni" and the like differ in products alone.
ISAS = [isa for isa in _C.isas() if "_" not in isa]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set that this machine runs."""
    return str(request.param)


@dataclass(frozen=True)
class Place:
    """Where a kernel runs, and in which type."""

    isa: str  # an instruction set of the CPU, or "cuda"
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> str:
        return "cuda" if self.isa == "cuda" else "cpu"

    def options(self, threads: int = 1) -> dict[str, Any]:
        """As training's functions take them; they count on the CPU alone."""
        return {"isa": "" if self.isa == "cuda" else self.isa, "threads": threads}

    def __str__(self) -> str:
        return f"{self.isa}-{self.dtype}".replace("torch.", "")


CUDA_PLACES = [Place("cuda", dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
PLACES = [Place(isa) for isa in ISAS] + CUDA_PLACES
CPU_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # of training
TRAINING_PLACES = [Place(isa, dtype) for isa in ISAS for dtype in CPU_DTYPES] + CUDA_PLACES


def params(places: list[Place]) -> list[Any]:
    """Of a fixture."""
    gpu = [pytest.mark.gpu]
    return [pytest.param(p, id=str(p), marks=gpu if p.isa == "cuda" else []) for p in places]


@pytest.fixture(params=params(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    """Every instruction set that this machine runs, and the GPU in every type."""
    found: Place = request.param
    return found


@pytest.fixture(params=params(TRAINING_PLACES))
def training_place(request: pytest.FixtureRequest) -> Place:
    """As `place`, with every type that training has on the CPU."""
    found: Place = request.param
    return found


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where a model runs."""
    return str(request.param)


@pytest.fixture(
    params=[
        ("cpu", torch.bfloat16),
        pytest.param(("cuda", torch.float16), marks=pytest.mark.gpu),
        pytest.param(("cuda", torch.bfloat16), marks=pytest.mark.gpu),
    ],
    ids=lambda place: f"{place[0]}-{place[1]}".replace("torch.", ""),
)
def half_place(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    """Where a model runs in half precision, and in which type."""
    found: tuple[str, torch.dtype] = request.param
    return found


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same for equal seeds."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def poison(*shape: int) -> Tensor:
    """Memory that nobody may read before it is written."""
    return torch.full(shape, float("nan"))


def assert_same_bits(ours: Tensor, expected: Tensor, what: str = "") -> None:
    """Equal to the bit, so that -0 is not 0 and NaN is NaN."""
    assert ours.shape == expected.shape and ours.dtype == expected.dtype == torch.float32
    differs = ours.contiguous().view(torch.int32) != expected.contiguous().view(torch.int32)
    assert not differs.any(), (
        f"{what}: {int(differs.sum())} of {differs.numel()} differ, first at "
        f"{differs.nonzero()[0].tolist()}: {ours[differs][0]} instead of {expected[differs][0]}"
    )


def assert_within_torch(op: Callable[..., Tensor], ours: Tensor, *inputs: Any) -> None:
    """Passes when `ours` is at most twice as wrong as torch, plus one rounding step.

    op: the operator in a few lines of torch; it is called with `inputs` as they are and once with
    all floating point tensors among them in float64, which gives the exact result.
    """
    Expected.of(op, *inputs).check(ours)


@dataclass(frozen=True)
class Expected:
    """What `assert_within_torch` compares with, computed once for many results."""

    op: str
    theirs: Tensor
    exact: Tensor

    @classmethod
    def of(cls, op: Callable[..., Tensor], *inputs: Any) -> Expected:
        return cls(op.__name__, op(*inputs), op(*(_upcast(value) for value in inputs)))

    def check(self, ours: Tensor) -> None:
        theirs, exact = self.theirs, self.exact
        assert ours.shape == exact.shape, f"shape {list(ours.shape)}, not {list(exact.shape)}"
        if ours.numel() == 0:
            return
        if theirs.dtype == torch.float64:  # as exact as what it would be held against
            torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12, equal_nan=True)
            return
        finite = exact.isfinite()
        wrong_place = ours.isfinite() != finite
        wrong_value = ~finite & ~wrong_place & (ours != exact) & ~(ours.isnan() & exact.isnan())
        for places in (wrong_place, wrong_value):
            assert not places.any(), self._report(ours, places)
        if not finite.any():
            return
        error = (ours.double() - exact).abs().where(finite, 0.0)
        allowed = 2 * (theirs.double() - exact).abs().where(finite, 0.0).max()
        allowed += torch.finfo(theirs.dtype).eps * exact[finite].abs().max()
        assert error.max() <= allowed, (
            self._report(ours, error == error.max()) + f", error {error.max():.3g} > {allowed:.3g}"
        )

    def _report(self, ours: Tensor, places: Tensor) -> str:
        at = tuple(places.nonzero()[0].tolist())
        return (
            f"{self.op}, {ours.dtype}, shape {list(ours.shape)}: at {list(at)} "
            f"{ours[at].item():.9g} instead of {self.exact[at].item():.9g}"
        )


def _upcast(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if floating else value
