"""rotate against torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, random


@dataclass(frozen=True)
class Shape:
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    size: int = 64
    interleaved: bool = False
    factor: float = 1.0
    behind: int = 64  # columns behind the keys: values
    original: int = 0  # of several tables: see RotaryTables
    span: int = 0

    @property
    def turning(self) -> int:
        return (self.heads + self.kv_heads) * self.head_dim

    @property
    def stride(self) -> int:
        return self.turning + self.behind


def frequencies(size: int, base: float = 10000.0) -> Tensor:
    """[1, size / 2]"""
    return base ** -(torch.arange(0, size, 2).float() / size)[None]


def turn(x: Tensor, angles: Tensor, shape: Shape) -> Tensor:
    """x: [rows, heads, size]; angles: [rows, size / 2]."""
    sine, cosine = (shape.factor * f(angles)[:, None].to(x.dtype) for f in (torch.sin, torch.cos))
    if shape.interleaved:
        a, b = x[..., ::2], x[..., 1::2]
    else:
        a, b = x.chunk(2, -1)
    turned = torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1)
    return turned.flatten(-2) if shape.interleaved else turned.transpose(-1, -2).flatten(-2)


def reference(
    x: Tensor,
    at: Tensor,
    frequency: Tensor | None,
    q_gamma: Tensor | None,
    k_gamma: Tensor | None,
    shape: Shape,
) -> Tensor:
    turning, rest = x.split([shape.turning, shape.behind], -1)
    q, k = turning.unflatten(-1, (-1, shape.head_dim)).split([shape.heads, shape.kv_heads], 1)
    if q_gamma is not None:
        q = functional.rms_norm(q, q.shape[-1:], q_gamma.to(x.dtype), 1e-6)
    if k_gamma is not None:
        k = functional.rms_norm(k, k.shape[-1:], k_gamma.to(x.dtype), 1e-6)
    heads = torch.cat([q, k], 1)
    if frequency is not None:
        # The angle is a float32 everywhere: that is what models are trained with.
        own = frequency.float()
        if len(own) > 1:
            at, read = at % shape.span, at // shape.span
            own = own[read.maximum((at + 1 - shape.original).clamp(0, len(own) - 1))]
        angles = (at[:, None].float() * own).to(frequency.dtype)
        first, second = heads.split([shape.size, shape.head_dim - shape.size], -1)
        heads = torch.cat([turn(first, angles, shape), second], -1)
    return torch.cat([heads.flatten(1), rest], -1)


Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Shape]


def make(place: Place, rows: int, shape: Shape, norms: bool = False) -> Inputs:
    """gamma in float32, but of values that the place's type has."""
    x = random(rows, shape.stride).to(place.device, place.dtype)
    generator = torch.Generator().manual_seed(5)
    at = torch.randint(4096, (rows,), generator=generator, dtype=torch.int32).to(place.device)
    frequency = frequencies(shape.size).to(place.device) if shape.size else None
    gammas = [
        random(shape.head_dim, seed=seed).to(place.dtype).float().to(place.device)
        for seed in (1, 2)
    ]
    return x, at, frequency, *(gammas if norms else (None, None)), shape


def rotate(inputs: Inputs, place: Place, threads: int = 1) -> Tensor:
    x, at, frequency, q_gamma, k_gamma, shape = inputs
    y = x.clone()
    kernels.rotate(
        *(y, at, frequency),
        **{"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim},
        **{"interleaved": shape.interleaved, "factor": shape.factor},
        **{"q_gamma": q_gamma, "k_gamma": k_gamma},
        **{"original": shape.original, "span": shape.span},
        **{"isa": place.isa, "threads": threads},
    )
    return y


SHAPES = [
    Shape(head_dim=8, size=8, interleaved=True),
    Shape(head_dim=80, size=32),
    Shape(head_dim=80, size=32, interleaved=True),
    Shape(heads=8, kv_heads=8, head_dim=96, size=96, factor=1.19),
    Shape(heads=5, head_dim=100, size=26),
    Shape(heads=4, kv_heads=2, head_dim=128, size=128),
    Shape(head_dim=256, size=64, interleaved=True),
    Shape(heads=2, head_dim=256, size=256, behind=0),
    Shape(heads=2, head_dim=33, size=2),
]


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch(place: Place, shape: Shape, norms: bool) -> None:
    for rows in (1, 6):
        inputs = make(place, rows, shape, norms)
        y = rotate(inputs, place, threads=2)
        assert_within_torch(reference, y, *inputs)
        assert torch.equal(y[:, shape.turning :], inputs[0][:, shape.turning :])
        turned, behind = (
            tensor[:, : shape.turning].unflatten(1, (-1, shape.head_dim))[..., shape.size :]
            for tensor in (y, inputs[0])
        )
        assert norms or torch.equal(turned, behind)


@pytest.mark.parametrize("head_dim", [8, 33, 128, 256])
def test_norms_alone(place: Place, threads: int, head_dim: int) -> None:
    inputs = make(place, 5, Shape(head_dim=head_dim, size=0), norms=True)
    assert_within_torch(reference, rotate(inputs, place, threads), *inputs)


def test_one_norm_alone(place: Place) -> None:
    x, at, frequency, gamma, _, shape = make(place, 3, Shape(), norms=True)
    for gammas in ((gamma, None), (None, gamma)):
        inputs = (x, at, frequency, *gammas, shape)
        assert_within_torch(reference, rotate(inputs, place), *inputs)


@pytest.mark.parametrize("position", [0, 1, 130_000, 1_000_000])
def test_positions_far_away(place: Place, position: int) -> None:
    """Sine and cosine themselves: a is 1 and b is 0."""
    shape = Shape(heads=1, kv_heads=0, head_dim=256, size=256, behind=0)
    x = torch.tensor([[1.0, 0.0]]).repeat_interleave(128, 1).to(place.device, place.dtype)
    at = torch.tensor([position], dtype=torch.int32, device=place.device)
    inputs = (x, at, frequencies(256, 500.0).to(place.device), None, None, shape)
    assert_within_torch(reference, rotate(inputs, place), *inputs)


@pytest.mark.parametrize("interleaved", [False, True])
def test_tables_of_longer_rows(place: Place, interleaved: bool) -> None:
    """Tokens of each table: read with their row, or behind it."""
    shape = Shape(interleaved=interleaved, original=40, span=50)
    position = torch.tensor([0, 39, 40, 41, 45, 49, 3, 39, 40, 7])
    read = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 3, 3])
    at = (position + read * shape.span).int()
    x, _, frequency, *_ = make(place, len(at), shape)
    assert frequency is not None
    tables = frequency * torch.tensor([1, 0.7, 0.5, 0.2], device=place.device)[:, None]
    inputs = (x, at.to(place.device), tables, None, None, shape)
    assert_within_torch(reference, rotate(inputs, place), *inputs)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_do_not_see_each_other(place: Place, interleaved: bool) -> None:
    shape = Shape(head_dim=80, size=32, interleaved=interleaved)
    inputs = make(place, 3, shape)
    expected = rotate(inputs, place)
    spoilt = inputs[0].clone()
    partner = 3 if interleaved else 18
    spoilt[1, [2, 70]] = float("nan")  # in the first head: one that turns, one behind
    y = rotate((spoilt, *inputs[1:]), place)
    assert y[1, [2, partner, 70]].isnan().all()
    y[1, [2, partner, 70]] = expected[1, [2, partner, 70]]
    assert_same_bits(y.float(), expected.float())


@pytest.mark.parametrize("norms", [False, True])
def test_a_row_does_not_depend_on_its_batch(place: Place, threads: int, norms: bool) -> None:
    halves = Shape(heads=5, kv_heads=2, head_dim=24, size=24)
    for shape in (halves, replace(halves, interleaved=True)):
        inputs = make(place, 300, shape, norms)
        together = rotate(inputs, place, threads)
        for r in (0, 1, 150, 299):
            alone = (inputs[0][r : r + 1].clone(), inputs[1][r : r + 1].clone(), *inputs[2:])
            assert_same_bits(together[r : r + 1].float(), rotate(alone, place).float())


def test_no_rows(place: Place, threads: int) -> None:
    shape = Shape()
    assert rotate(make(place, 0, shape), place, threads).shape == (0, shape.stride)
