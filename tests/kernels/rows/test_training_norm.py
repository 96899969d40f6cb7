"""training.norm and training.norm_backward against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding import Error
from decoding._C import training
from tests.conftest import TRAINING_PLACES, Place, assert_within_torch, params, poison
from tests.kernels.rows.norm_case import COLS, EPS, LONG, Case, case, stats_of


def norm(s: Tensor, gamma: Tensor | None, beta: Tensor | None, rms: bool) -> Tensor:
    gamma, beta = (None if weight is None else weight.to(s.dtype) for weight in (gamma, beta))
    if rms:
        return F.rms_norm(s, s.shape[1:], gamma, EPS)
    return F.layer_norm(s, s.shape[1:], gamma, beta, EPS)


def add(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return x + bias.to(x.dtype) + residual


def gradient(which: int) -> Callable[..., Tensor]:
    """torch's dx, dgamma, dbeta or dbias."""

    def torchs(
        s: Tensor, gamma: Tensor | None, dy: Tensor, dsum: Tensor | None, rms: bool
    ) -> Tensor:
        s = s.detach().requires_grad_()
        ones, zeros = torch.ones_like(s[0]), torch.zeros_like(s[0])
        gamma = (ones if gamma is None else gamma.to(s.dtype)).detach().requires_grad_()
        beta = zeros.requires_grad_()
        y = norm(s, gamma, None, rms) + beta
        dx, dgamma, dbeta = torch.autograd.grad(y, (s, gamma, beta), dy)
        dx = dx if dsum is None else dx + dsum
        return [dx, dgamma, dbeta, dx.sum(0)][which]

    torchs.__name__ = ["dx", "dgamma", "dbeta", "dbias"][which]
    return torchs


def assert_equals_torch(case: Case, place: Place) -> None:
    y, s, _ = case.forward(place)
    if case.residual is not None:
        assert_within_torch(add, s, case.x, case.bias, case.residual)
    assert_within_torch(norm, y, s, case.gamma, case.beta, case.rms)
    assert_backward_equals_torch(case, s, place)


def assert_backward_equals_torch(case: Case, s: Tensor, place: Place) -> None:
    for which, ours in enumerate(case.backward(s, place)):
        assert_within_torch(gradient(which), ours, s, case.gamma, case.dy, case.dsum, case.rms)


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_equals_torch(training_place: Place, cols: int, rms: bool, added: bool) -> None:
    assert_equals_torch(case(training_place, 7, cols, rms, added), training_place)


def test_one_column(training_place: Place) -> None:
    """Nothing is left of it but beta, and what comes to the sum; all else cancels."""
    given = case(training_place, 7, 1, added=True)
    y, s, _ = given.forward(training_place)
    dx = given.backward(s, training_place)[0]
    assert given.beta is not None and given.dsum is not None
    assert torch.equal(y, given.beta.expand(7, 1))
    rounding = 4 * torch.finfo(given.sums).eps * EPS**-0.5
    torch.testing.assert_close(dx, given.dsum, rtol=torch.finfo(dx.dtype).eps, atol=rounding)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_rows(cols: int, added: bool, dtype: torch.dtype) -> None:
    place = Place("cuda", dtype)
    for rows in (1, 5, 300):
        assert_equals_torch(case(place, rows, cols, added=added), place)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [64, 768, 1024, 2048])
def test_more_rows_than_fit_at_once(cols: int) -> None:
    place = Place("cuda", torch.float16)
    assert_equals_torch(case(place, 20001, cols, added=True), place)


@pytest.mark.parametrize("rows", [1, 63, 65, 200])
def test_rows_in_parts(training_place: Place, rows: int) -> None:
    assert_equals_torch(case(training_place, rows, 40, added=True), training_place)


@pytest.mark.parametrize("cols", [9, 64, 1024])
def test_what_is_kept_of_rows(training_place: Place, cols: int) -> None:
    given = case(training_place, 5, cols, added=True)
    _, s, [mean, rstd] = given.forward(training_place)
    wide = s.to(given.sums)
    assert_within_torch(lambda x: x.mean(1), mean, wide)
    assert_within_torch(lambda x: (x.var(1, correction=0) + EPS).rsqrt(), rstd, wide)


def test_without_weights(training_place: Place) -> None:
    given = case(training_place, 6, 72)
    given = Case(**{**vars(given), "gamma": None, "beta": None})
    assert_equals_torch(given, training_place)


@pytest.mark.parametrize("cols", [33, 64, 1024])
@pytest.mark.parametrize("place", params([p for p in TRAINING_PLACES if p.dtype.itemsize == 2]))
def test_float32_weights_beside_two_byte_rows(place: Place, cols: int) -> None:
    given = case(place, 6, cols, added=True)
    wide = {name: getattr(given, name).float() for name in ("bias", "gamma", "beta")}
    in_float32 = Case(**{**vars(given), **wide})
    for ours, same in zip(in_float32.forward(place), given.forward(place), strict=True):
        assert torch.equal(ours, same)  # the numbers are those of the narrow weights
    s = given.forward(place)[1]
    dx, *grads = in_float32.backward(s, place)
    narrow_dx, *narrow = given.backward(s, place)
    assert torch.equal(dx, narrow_dx)
    for ours, rounded in zip(grads, narrow, strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours.to(rounded.dtype), rounded)


def test_bits_do_not_depend_on_threads(training_place: Place) -> None:
    given = case(training_place, 150, 70, added=True)
    alone = [*given.forward(training_place), *given.backward(given.x, training_place)]
    for threads in (1, 2, 3):
        again = given.forward(training_place, threads)
        gradients = given.backward(given.x, training_place, threads)
        for ours, expected in zip([*again, *gradients], alone, strict=True):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("cols", [40, 1024])
def test_a_broken_row_breaks_no_other(training_place: Place, cols: int) -> None:
    given = case(training_place, 9, cols)
    dx = given.backward(given.x, training_place)[0]
    given.x[4] = torch.nan
    broken = given.backward(given.x, training_place)[0]
    kept = torch.arange(9, device=dx.device) != 4
    assert torch.equal(broken[kept], dx[kept]) and broken[4].isnan().all()


def test_only_what_is_wanted(training_place: Place) -> None:
    given = case(training_place, 9, 24)
    dx, dgamma, *_ = given.backward(given.x, training_place)
    stats = stats_of(given.x.to(given.sums), rms=False)
    for wanted in (None, poison(24).to(dgamma)):
        alone = poison(9, 24).to(dx)
        training.norm_backward(
            given.x,
            given.dy,
            alone,
            stats,
            given.gamma,
            wanted,
            None,
            None,
            None,
            **training_place.options(),
        )
        assert torch.equal(alone, dx) and (wanted is None or torch.equal(wanted, dgamma))


def test_no_rows(training_place: Place) -> None:
    given = case(training_place, 0, 24, added=True)
    assert given.forward(training_place)[0].shape == (0, 24)
    for gradient in given.backward(given.x, training_place)[1:]:
        assert (gradient == 0).all()


def test_a_sum_without_an_addend_is_refused(training_place: Place) -> None:
    given = case(training_place, 2, 8)
    y, x, stats = given.forward(training_place)
    for residual, total in [(None, x.clone()), (x, None)]:
        with pytest.raises(Error, match="sum where something is added"):
            training.norm(x, y, stats, None, None, residual, None, total, EPS, False)
