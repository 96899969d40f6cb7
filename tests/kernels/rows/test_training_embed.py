"""training.embed and training.embed_backward against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import Error
from decoding._C import training
from tests.conftest import Place, assert_within_torch, poison, random

VOCAB, POSITIONS = 50, 12
HIDDEN = [1, 8, 31, 64, 257, 1032]


def some(place: Place, rows: int, below: int, seed: int = 0) -> Tensor:
    """Ids, some of them often; the last one is among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(below, (rows,), generator=generator)
    ids[::3] = 3
    ids[-1:] = below - 1
    return ids.to(place.device)


def numbers(place: Place, rows: int, hidden: int, seed: int) -> Tensor:
    return random(rows, hidden, seed=seed).to(place.device, place.dtype)


def embed(ids: Tensor, table: Tensor, place: Place, threads: int = 1, **options: Any) -> Tensor:
    y = poison(len(ids), table.shape[1]).to(table)
    training.embed(ids, table, y, **options, **place.options(threads))
    return y


def backward(
    dy: Tensor,
    ids: Tensor,
    rows: int,
    place: Place,
    threads: int = 1,
    ordered: bool = True,
    **options: Any,
) -> Tensor:
    """Of a table of so many rows."""
    order = None
    if ordered:
        ids, order = ids.sort(stable=True)
    dtable = dy.new_zeros(rows, dy.shape[1])
    training.embed_backward(dy, ids, order, dtable, **options, **place.options(threads))
    return dtable


def reference(
    ids: Tensor, table: Tensor, positions: Tensor | None, position: Tensor, scale: float
) -> Tensor:
    x = table[ids] * scale
    return x if positions is None else x + positions[position]


def reference_backward(
    dy: Tensor, ids: Tensor, rows: int, scale: float, ignored: int = -1
) -> Tensor:
    counted = ids != ignored
    dtable = dy.new_zeros(rows, dy.shape[1])
    return dtable.index_add(0, ids[counted], dy[counted]) * scale


@pytest.mark.parametrize("hidden", HIDDEN)
def test_equals_torch(training_place: Place, hidden: int) -> None:
    place, rows, scale = training_place, 21, hidden**0.5
    ids = some(place, rows, VOCAB)
    table, positions = numbers(place, VOCAB, hidden, 0), numbers(place, POSITIONS, hidden, 1)
    position = some(place, rows, POSITIONS, seed=1)
    y = embed(ids, table, place, scale=scale)
    assert_within_torch(reference, y, ids, table, None, position, scale)
    y = embed(ids, table, place, scale=scale, positions=positions, position=position)
    assert_within_torch(reference, y, ids, table, positions, position, scale)
    y = embed(ids, table, place, scale=scale, positions=positions, length=7)
    position = torch.arange(rows, device=ids.device) % 7
    assert_within_torch(reference, y, ids, table, positions, position, scale)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", [1, 16, 17, 100, 333])
def test_gradient_equals_torch(training_place: Place, hidden: int, rows: int) -> None:
    """In eight columns at least: the error of one long sum is a draw, torch's too."""
    place = training_place
    ids, dy = some(place, rows, VOCAB), numbers(place, rows, max(hidden, 8), 2)
    for ignored in (-1, 3, VOCAB - 1):
        options: dict[str, Any] = {"scale": 3.0, "ignored": ignored}
        parts = [part.contiguous() for part in dy.split(hidden, dim=1)]
        dtable = torch.cat([backward(part, ids, VOCAB, place, **options) for part in parts], 1)
        assert_within_torch(reference_backward, dtable, dy, ids, VOCAB, 3.0, ignored)


@pytest.mark.parametrize("count", [15, 16, 17, 32, 33, 48, 100])
def test_runs_of_one_id(training_place: Place, count: int) -> None:
    """They begin and end within a part of the order, or at its ends, or fill parts."""
    place = training_place
    for before in (0, 1, 15, 16, 17):
        ids = torch.tensor([2] * before + [5] * count + [9] * 3, device=place.device)
        dy = numbers(place, len(ids), 24, 3)
        assert_within_torch(reference_backward, backward(dy, ids, 10, place), dy, ids, 10, 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", HIDDEN)
def test_rows_in_any_order(hidden: int) -> None:
    place = Place("cuda")
    for rows in (1, 100, 5000):
        ids, dy = some(place, rows, VOCAB), numbers(place, rows, hidden, 2)
        dtable = backward(dy, ids, VOCAB, place, ordered=False, scale=3.0, ignored=7)
        exact, size = (
            reference_backward(x, ids, VOCAB, 3.0, 7) for x in (dy.double(), dy.double().abs())
        )
        # A sum of n numbers rounds n times, whatever their order, and each is scaled first.
        roundings = 1 + torch.bincount(ids, minlength=VOCAB)[:, None]
        assert ((dtable - exact).abs() <= roundings * 2.0**-24 * size).all()


@pytest.mark.parametrize("hidden", [31, 64])
def test_dropout_is_the_same_in_both_passes(training_place: Place, hidden: int) -> None:
    place = training_place
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0)).to(place.device)
    how: dict[str, Any] = {"dropout": 0.3, "seed": torch.tensor([9], device=place.device)}
    ones = torch.ones(VOCAB, hidden, device=place.device, dtype=place.dtype)
    y = embed(ids, ones, place, **how)
    alone = torch.empty_like(y)
    training.dropout(ones, alone, p=0.3, seed=how["seed"], **place.options())
    assert torch.equal(y, alone) and 0.2 < float((y == 0).float().mean()) < 0.4
    for ordered in [True, False] if place == Place("cuda") else [True]:
        dtable = backward(ones, ids, VOCAB, place, ordered=ordered, **how)
        assert torch.equal(dtable[ids], y)


def test_bits_do_not_depend_on_threads(training_place: Place, threads: int) -> None:
    place = training_place
    ids, dy = some(place, 200, VOCAB), numbers(place, 200, 70, 2)
    how: dict[str, Any] = {"dropout": 0.5, "seed": torch.tensor([1], device=place.device)}
    table = numbers(place, VOCAB, 70, 0)
    alone = embed(ids, table, place, **how), backward(dy, ids, VOCAB, place, **how)
    assert torch.equal(embed(ids, table, place, threads, **how), alone[0])
    assert torch.equal(backward(dy, ids, VOCAB, place, threads, **how), alone[1])


def test_rows_without_an_id_are_left_as_they_are(training_place: Place) -> None:
    dtable = poison(10, 24).to(training_place.device, training_place.dtype)
    ids = torch.tensor([2, 4, 4], device=training_place.device)
    dy = numbers(training_place, 3, 24, 0)
    training.embed_backward(
        *(dy, ids, torch.arange(3, device=ids.device), dtable),
        **{"ignored": 2} | training_place.options(2),
    )
    assert dtable.isnan().any(1).tolist() == [row != 4 for row in range(10)]


def test_reads_only_the_rows_it_is_given(training_place: Place) -> None:
    ids = some(training_place, 9, VOCAB)
    table = numbers(training_place, VOCAB, 64, 0)
    poisoned = torch.full_like(table, torch.nan)
    poisoned[ids] = table[ids]
    assert torch.equal(embed(ids, poisoned, training_place), embed(ids, table, training_place))


def test_no_rows(training_place: Place) -> None:
    ids = some(training_place, 0, VOCAB)
    table = numbers(training_place, VOCAB, 8, 0)
    assert embed(ids, table, training_place).shape == (0, 8)
    assert (backward(table[:0], ids, VOCAB, training_place) == 0).all()


@pytest.mark.parametrize("wrong", [-1, VOCAB, 2**40])
def test_ids_that_the_table_does_not_have(wrong: int) -> None:
    ids, table, positions = torch.tensor([1, wrong]), torch.ones(VOCAB, 8), torch.ones(4, 8)
    place = Place("")
    with pytest.raises(IndexError, match=f"ids must be 0 to 49, got {wrong}"):
        embed(ids, table, place)
    with pytest.raises(IndexError, match=f"positions must be 0 to 3, got {wrong}"):
        embed(ids[:1].repeat(2), table, place, positions=positions, position=ids)
    with pytest.raises(IndexError, match="positions must be 0 to 3, got 4"):
        embed(ids[:1].repeat(5), table, place, positions=positions, length=5)
    with pytest.raises(Error, match="positions need a length"):
        embed(ids[:1], table, place, positions=positions)
    with pytest.raises(Error, match="order may be None on a GPU"):
        backward(table[:2], ids, VOCAB, place, ordered=False)


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", [-1, VOCAB, 2**40])
def test_on_a_gpu_a_later_call_says_so(wrong: int) -> None:
    place = Place("cuda")
    ids, table = torch.tensor([1, wrong], device="cuda"), torch.ones(VOCAB, 8, device="cuda")
    y = embed(ids, table, place)
    assert (y[0] == 1).all() and y[1].isnan().all()
    with pytest.raises(IndexError, match=f"ids must be 0 to 49, got {wrong} in an earlier call"):
        embed(ids[:1], table, place)
    assert (embed(ids[:1], table, place) == 1).all()
    dtable = backward(table[:2], ids, VOCAB, place)
    assert dtable.sum() == 8  # the row of the wrong id goes nowhere
