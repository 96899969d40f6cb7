"""detect_overflow against a few lines of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, poison, random

INF, NAN = float("inf"), float("nan")
NUMBER = 5  # of the tensor


class Found:
    """What the kernel writes: largest, rows that are not finite, and by place the first tensor."""

    def __init__(self, place: Place, places: int) -> None:
        self.count = torch.zeros(2, dtype=torch.int32, device=place.device)
        self.first = torch.zeros(places, dtype=torch.int32, device=place.device)

    @property
    def largest(self) -> float:
        return float(self.count[:1].view(torch.float32))

    @property
    def not_finite(self) -> int:
        return int(self.count[1])


def detect(place: Place, threads: int, x: Tensor, found: Found, **more: Any) -> None:
    options = {"tensor": NUMBER, "isa": place.isa, "threads": threads} | more
    kernels.detect_overflow(x, found.count, found.first, **options)


def rows(place: Place, count: int, cols: int) -> Tensor:
    """Rows 1 and count - 1 hold NaN or infinity, at their ends."""
    x = 50 * random(count, cols)
    x[1, 0], x[count - 1, cols - 1] = NAN, -INF
    return x.to(place.device, place.dtype)


@pytest.mark.parametrize("cols", [1, 7, 513, 1000])
def test_each_row_has_its_place(place: Place, threads: int, cols: int) -> None:
    x = rows(place, 5, cols)
    found = Found(place, 9)
    places = torch.tensor([8, 3, 0, 1, 4], dtype=torch.int32, device=place.device)
    found.first[3] = 2  # an earlier tensor was not finite there
    detect(place, threads, x, found, places=places)
    finite = x[x.isfinite()].abs()
    assert found.largest == (float(finite.max()) if len(finite) else 0)
    assert found.not_finite == 2 and found.first.tolist() == [0, 0, 0, 2, NUMBER, 0, 0, 0, 0]
    detect(place, threads, x, found, places=places, renews=True)
    assert found.not_finite == 4
    assert found.first.tolist() == [0, 0, 0, NUMBER, NUMBER, 0, 0, 0, 0]
    detect(place, threads, torch.zeros_like(x), found, places=places, renews=True)
    assert found.not_finite == 4 and not found.first.any()


def test_rows_without_a_place_are_not_looked_at(place: Place, threads: int) -> None:
    x = rows(place, 5, 40)
    found = Found(place, 5)
    places = torch.tensor([0, 2, 1, 3, -1], dtype=torch.int32, device=place.device)
    x[4] = INF
    detect(place, threads, x, found, places=places)
    assert found.largest == float(x[:4][x[:4].isfinite()].abs().max())
    assert found.not_finite == 1 and found.first.tolist() == [0, 0, NUMBER, 0, 0]


def test_rows_are_their_own_places(place: Place, threads: int) -> None:
    found = Found(place, 5)
    detect(place, threads, rows(place, 5, 40), found)
    assert found.first.tolist() == [0, NUMBER, 0, 0, NUMBER]


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_of_a_step_are_those_of_active_sentences(
    place: Place, threads: int, beams: int
) -> None:
    """Memory behind the active ones is not looked at."""
    x = poison(4 * beams, 33).to(place.device, place.dtype)
    x[: 3 * beams] = random(3 * beams, 33).to(x)
    x[2 * beams - 1, 5] = INF
    active = torch.tensor([[6, 2, 0], [1, 9, 0], [4, 1, 0], [0, 0, 0]], dtype=torch.int32)
    state = torch.tensor([2, 3], dtype=torch.int32)
    found = Found(place, 7)
    step = {"active": active.to(place.device), "state": state.to(place.device), "beams": beams}
    detect(place, threads, x, found, **step)
    assert found.not_finite == 1 and found.first.tolist() == [0, NUMBER, 0, 0, 0, 0, 0]
    own = x[: 3 * beams]
    assert found.largest == float(own[own.isfinite()].abs().max())


def test_the_largest_number_of_a_type(place: Place) -> None:
    largest = torch.finfo(place.dtype).max
    found = Found(place, 1)
    detect(place, 1, torch.tensor([[1.0, -largest]]).to(place.device, place.dtype), found)
    assert found.largest == largest and found.not_finite == 0
