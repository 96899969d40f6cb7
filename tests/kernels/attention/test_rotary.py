"""apply_rotary against torch."""

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
    tail: int = 64  # columns after the keys: values
    original: int = 0  # of several tables: see RotaryTables
    span: int = 0

    @property
    def rotary(self) -> int:
        return (self.heads + self.kv_heads) * self.head_dim

    @property
    def stride(self) -> int:
        return self.rotary + self.tail


def frequencies(size: int, base: float = 10000.0) -> Tensor:
    """[1, size / 2]"""
    return base ** -(torch.arange(0, size, 2).float() / size)[None]


def rotate_pairs(x: Tensor, angles: Tensor, shape: Shape) -> Tensor:
    """x: [rows, heads, size]; angles: [rows, size / 2]."""
    sine, cosine = (shape.factor * f(angles)[:, None].to(x.dtype) for f in (torch.sin, torch.cos))
    if shape.interleaved:
        a, b = x[..., ::2], x[..., 1::2]
    else:
        a, b = x.chunk(2, -1)
    rotated = torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1)
    return rotated.flatten(-2) if shape.interleaved else rotated.transpose(-1, -2).flatten(-2)


def reference(
    x: Tensor,
    positions: Tensor,
    frequency: Tensor | None,
    q_gamma: Tensor | None,
    k_gamma: Tensor | None,
    shape: Shape,
) -> Tensor:
    rotary, rest = x.split([shape.rotary, shape.tail], -1)
    q, k = rotary.unflatten(-1, (-1, shape.head_dim)).split([shape.heads, shape.kv_heads], 1)
    if q_gamma is not None:
        q = functional.rms_norm(q, q.shape[-1:], q_gamma.to(x.dtype), 1e-6)
    if k_gamma is not None:
        k = functional.rms_norm(k, k.shape[-1:], k_gamma.to(x.dtype), 1e-6)
    heads = torch.cat([q, k], 1)
    if frequency is not None:
        # The angle is a float32 everywhere: that is what models are trained with.
        own = frequency.float()
        if len(own) > 1:
            positions, read = positions % shape.span, positions // shape.span
            own = own[read.maximum((positions + 1 - shape.original).clamp(0, len(own) - 1))]
        angles = (positions[:, None].float() * own).to(frequency.dtype)
        first, second = heads.split([shape.size, shape.head_dim - shape.size], -1)
        heads = torch.cat([rotate_pairs(first, angles, shape), second], -1)
    return torch.cat([heads.flatten(1), rest], -1)


Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Shape]


def make(place: Place, rows: int, shape: Shape, norms: bool = False) -> Inputs:
    """gamma in float32, but of values that the place's type has."""
    x = random(rows, shape.stride).to(place.device, place.dtype)
    generator = torch.Generator().manual_seed(5)
    positions = torch.randint(4096, (rows,), generator=generator, dtype=torch.int32).to(
        place.device
    )
    frequency = frequencies(shape.size).to(place.device) if shape.size else None
    gammas = [
        random(shape.head_dim, seed=seed).to(place.dtype).float().to(place.device)
        for seed in (1, 2)
    ]
    return x, positions, frequency, *(gammas if norms else (None, None)), shape


def apply_rotary(inputs: Inputs, place: Place, threads: int = 1) -> Tensor:
    x, positions, frequency, q_gamma, k_gamma, shape = inputs
    y = x.clone()
    kernels.apply_rotary(
        *(y, positions, frequency),
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
    Shape(heads=2, head_dim=256, size=256, tail=0),
    Shape(heads=2, head_dim=33, size=2),
]


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch(place: Place, shape: Shape, norms: bool) -> None:
    for rows in (1, 6):
        inputs = make(place, rows, shape, norms)
        y = apply_rotary(inputs, place, threads=2)
        assert_within_torch(reference, y, *inputs)
        assert torch.equal(y[:, shape.rotary :], inputs[0][:, shape.rotary :])
        rotated, given = (
            tensor[:, : shape.rotary].unflatten(1, (-1, shape.head_dim))[..., shape.size :]
            for tensor in (y, inputs[0])
        )
        assert norms or torch.equal(rotated, given)


@pytest.mark.parametrize("head_dim", [8, 33, 128, 256])
def test_norms_alone(place: Place, threads: int, head_dim: int) -> None:
    inputs = make(place, 5, Shape(head_dim=head_dim, size=0), norms=True)
    assert_within_torch(reference, apply_rotary(inputs, place, threads), *inputs)


def test_one_norm_alone(place: Place) -> None:
    x, positions, frequency, gamma, _, shape = make(place, 3, Shape(), norms=True)
    for gammas in ((gamma, None), (None, gamma)):
        inputs = (x, positions, frequency, *gammas, shape)
        assert_within_torch(reference, apply_rotary(inputs, place), *inputs)


@pytest.mark.parametrize("position", [0, 1, 130_000, 1_000_000])
def test_positions_far_away(place: Place, position: int) -> None:
    """Sine and cosine themselves: a is 1 and b is 0."""
    shape = Shape(heads=1, kv_heads=0, head_dim=256, size=256, tail=0)
    x = torch.tensor([[1.0, 0.0]]).repeat_interleave(128, 1).to(place.device, place.dtype)
    positions = torch.tensor([position], dtype=torch.int32, device=place.device)
    inputs = (x, positions, frequencies(256, 500.0).to(place.device), None, None, shape)
    assert_within_torch(reference, apply_rotary(inputs, place), *inputs)


@pytest.mark.parametrize("interleaved", [False, True])
def test_tables_of_longer_rows(place: Place, interleaved: bool) -> None:
    """Tokens of each table: read with their row, or behind it."""
    shape = Shape(interleaved=interleaved, original=40, span=50)
    position = torch.tensor([0, 39, 40, 41, 45, 49, 3, 39, 40, 7])
    read = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 3, 3])
    positions = (position + read * shape.span).int()
    x, _, frequency, *_ = make(place, len(positions), shape)
    assert frequency is not None
    tables = frequency * torch.tensor([1, 0.7, 0.5, 0.2], device=place.device)[:, None]
    inputs = (x, positions.to(place.device), tables, None, None, shape)
    assert_within_torch(reference, apply_rotary(inputs, place), *inputs)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_do_not_see_each_other(place: Place, interleaved: bool) -> None:
    shape = Shape(head_dim=80, size=32, interleaved=interleaved)
    inputs = make(place, 3, shape)
    expected = apply_rotary(inputs, place)
    spoilt = inputs[0].clone()
    partner = 3 if interleaved else 18
    spoilt[1, [2, 70]] = float("nan")  # in the first head: one that is rotated, one that is not
    y = apply_rotary((spoilt, *inputs[1:]), place)
    assert y[1, [2, partner, 70]].isnan().all()
    y[1, [2, partner, 70]] = expected[1, [2, partner, 70]]
    assert_same_bits(y.float(), expected.float())


@pytest.mark.parametrize("norms", [False, True])
def test_a_row_does_not_depend_on_its_batch(place: Place, threads: int, norms: bool) -> None:
    halves = Shape(heads=5, kv_heads=2, head_dim=24, size=24)
    for shape in (halves, replace(halves, interleaved=True)):
        inputs = make(place, 300, shape, norms)
        together = apply_rotary(inputs, place, threads)
        for r in (0, 1, 150, 299):
            alone = (inputs[0][r : r + 1].clone(), inputs[1][r : r + 1].clone(), *inputs[2:])
            assert_same_bits(together[r : r + 1].float(), apply_rotary(alone, place).float())


def test_no_rows(place: Place, threads: int) -> None:
    shape = Shape()
    assert apply_rotary(make(place, 0, shape), place, threads).shape == (0, shape.stride)
