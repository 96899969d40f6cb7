"""training.dropout: what is dropped, and what is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import Error, reference
from decoding._C import training
from tests.conftest import Place, assert_within_torch, poison, random

SIZES = [1, 3, 4, 8, 31, 255, 256, 257, 5000]


def dropout(x: Tensor, p: float, seed: int, place: Place, threads: int = 1) -> Tensor:
    y = poison(*x.shape).to(x)
    training.dropout(x, y, p=p, seed=seed_at(seed, place), **place.options(threads))
    return y


def seed_at(seed: int, place: Place) -> Tensor:
    return torch.tensor([seed], device=place.device)


def kept(count: int, p: float, seed: int) -> Tensor:
    """Which elements: those whose word of Philox reaches p 2^32."""
    places = torch.arange(count)
    zero = torch.zeros_like(places)
    words = torch.stack(reference.philox(seed, [places // 4, zero, zero, zero]))
    return words[places % 4, places] >= round(p * 2**32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_drops_what_philox_says(training_place: Place, size: int, seed: int) -> None:
    x = random(size).to(training_place.device, training_place.dtype)
    mask = kept(size, 0.3, seed).to(x.device)

    def dropped(x: Tensor) -> Tensor:
        return x * mask / 0.7

    y = dropout(x, 0.3, seed, training_place)
    assert torch.equal(y != 0, mask & (x != 0))
    assert_within_torch(dropped, y, x)


@pytest.mark.gpu
def test_a_seed_on_the_cpu() -> None:
    x = random(1000).cuda()
    y, expected = torch.empty_like(x), torch.empty_like(x)
    training.dropout(x, y, p=0.3, seed=torch.tensor([7]))
    training.dropout(x, expected, p=0.3, seed=torch.tensor([7]).cuda())
    assert torch.equal(y, expected)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_how_many_are_dropped(training_place: Place, p: float) -> None:
    count = 40_000
    y = dropout(
        torch.ones(count).to(training_place.device, training_place.dtype), p, 3, training_place
    )
    dropped = int((y == 0).sum())
    assert abs(dropped - p * count) < 4 * (count * p * (1 - p)) ** 0.5  # standard deviations


def test_nothing_and_everything(training_place: Place) -> None:
    x = random(100).to(training_place.device, training_place.dtype)
    assert torch.equal(dropout(x, 0.0, 1, training_place), x)
    assert (dropout(x, 1.0, 1, training_place) == 0).all()


def test_threads_shapes_and_in_place(training_place: Place, threads: int) -> None:
    x = random(3, 5, 1001).to(training_place.device, training_place.dtype)
    expected = dropout(x.flatten(), 0.4, 5, training_place)
    assert torch.equal(dropout(x, 0.4, 5, training_place, threads).flatten(), expected)
    training.dropout(
        x, x, p=0.4, seed=seed_at(5, training_place), **training_place.options(threads)
    )
    assert torch.equal(x.flatten(), expected)


def test_no_elements(training_place: Place) -> None:
    assert dropout(torch.empty(0, 4).to(training_place.device), 0.5, 1, training_place).numel() == 0


def test_what_is_refused() -> None:
    x, seed = torch.ones(4), torch.tensor([1])
    with pytest.raises(Error, match="dropout must be 0 to 1, got 1.5"):
        training.dropout(x, x, p=1.5, seed=seed)
    with pytest.raises(Error, match="seed must be int64"):
        training.dropout(x, x, p=0.5, seed=seed.int())
