"""Dropout within training.norm and training.norm_backward, against training.dropout and torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import Error
from decoding._C import training
from tests.conftest import Place, assert_within_torch, poison
from tests.kernels.rows.norm_case import COLS, EPS, LONG, Case, case


def assert_drops(given: Case, place: Place) -> None:
    """What training.dropout drops, before the residual is added, and of the input's gradient."""
    seed = torch.tensor([5], device=place.device)
    how: dict[str, Any] = {"dropout": 0.3, "seed": seed}
    mask = poison(*given.x.shape).to(given.x)
    training.dropout(torch.ones_like(mask), mask, 0.3, seed, **place.options())
    mask = mask.double().sign() / 0.7
    _, s, _ = given.forward(place, **how)

    def dropped(x: Tensor, mask: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return ((x + bias) * mask.to(x.dtype)) + residual

    assert_within_torch(dropped, s, given.x, mask, given.bias, given.residual)
    ds, *same, _ = given.backward(s, place)
    dresidual = poison(*s.shape).to(s)
    dx, *weights, dbias = given.backward(s, place, dresidual=dresidual, **how)
    for found, expected in zip([dresidual, *weights], [ds, *same], strict=True):
        assert torch.equal(found, expected)
    assert_within_torch(lambda ds, mask: ds * mask.to(ds.dtype), dx, ds, mask)
    inputs = (given.x, given.gamma, given.dy, given.dsum, given.rms)
    assert_within_torch(
        lambda ds, mask, *_: (ds * mask.to(ds.dtype)).sum(0), dbias, ds, mask, *inputs
    )


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rms", [False, True])
def test_dropout_before_the_residual(training_place: Place, cols: int, rms: bool) -> None:
    assert_drops(case(training_place, 67, cols, rms, added=True), training_place)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_in_long_rows(cols: int, dtype: torch.dtype) -> None:
    place = Place("cuda", dtype)
    assert_drops(case(place, 5, cols, added=True), place)


def test_dropout_alone(training_place: Place) -> None:
    """With neither a bias nor a residual; and of nobody who asks for the residual's gradient."""
    given = case(training_place, 5, 24)
    seed = torch.tensor([3], device=training_place.device)
    how: dict[str, Any] = {"dropout": 0.5, "seed": seed}
    total = poison(5, 24).to(given.x)
    stats = poison(2, 5).to(total.device, given.sums)
    training.norm(
        given.x,
        torch.empty_like(total),
        stats,
        None,
        None,
        None,
        None,
        total,
        EPS,
        False,
        **how,
        **training_place.options(),
    )
    expected = torch.empty_like(total)
    training.dropout(given.x, expected, 0.5, seed, **training_place.options())
    assert torch.equal(total, expected)
    ds, dx = given.backward(total, training_place)[0], given.backward(total, training_place, **how)
    assert torch.equal(dx[0] == 0, (expected == 0) | (ds == 0))


def test_a_gradient_of_the_residual_needs_dropout(training_place: Place) -> None:
    given = case(training_place, 2, 8, added=True)
    with pytest.raises(Error, match="without dropout the residual has the gradient dx"):
        given.backward(given.x, training_place, dresidual=torch.empty_like(given.x))
