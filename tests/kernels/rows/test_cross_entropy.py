"""training.cross_entropy, total_loss and cross_entropy_backward against torch."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding._C import training
from tests.conftest import ISAS, TRAINING_PLACES, Place, assert_within_torch, poison, random

IGNORED = -100
CLASSES = [2, 7, 8, 17, 257, 513, 2056, 4099, 50257]


@dataclass(frozen=True)
class Rows:
    """Logits [N, C], their labels [N], and what the loss makes of them."""

    x: Tensor
    labels: Tensor
    weight: Tensor | None = None
    smoothing: float = 0.0
    ignored: int = IGNORED

    @property
    def dtype(self) -> torch.dtype:
        """Of sums."""
        return torch.promote_types(self.x.dtype, torch.float32)

    def options(self, place: Place, threads: int = 1) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "weight_sum": None if self.weight is None else self.weight.sum().view(1),
            "ignored": self.ignored,
            "smoothing": self.smoothing,
            "isa": "" if place.isa == "cuda" else place.isa,
            "threads": threads,
        }


def rows_at(
    place: Place, rows: int, classes: int, *, weighted: bool = False, smoothing: float = 0.0
) -> Rows:
    x = (3 * random(rows, classes)).to(place.device, place.dtype)
    labels = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(classes))
    labels[1::4] = IGNORED
    labels[2::4] = classes - 1
    found = Rows(x, labels.to(place.device), smoothing=smoothing)
    if not weighted:
        return found
    weight = random(classes, seed=1).abs().bfloat16()  # numbers that every type has
    return replace(found, weight=weight.to(place.device, found.dtype))


def losses_of(rows: Rows, place: Place, threads: int = 1) -> tuple[Tensor, Tensor]:
    losses = poison(len(rows.x)).to(rows.x.device, rows.dtype)
    softmax = poison(len(rows.x), 2).to(losses)
    training.cross_entropy(rows.x, rows.labels, losses, softmax, **rows.options(place, threads))
    return losses, softmax


def gradient_of(
    rows: Rows, place: Place, softmax: Tensor, upstream: Tensor, dx: Tensor, threads: int = 1
) -> Tensor:
    options = rows.options(place, threads)
    training.cross_entropy_backward(rows.x, rows.labels, softmax, upstream, dx, **options)
    return dx


def reference(x: Tensor, labels: Tensor, weight: Tensor | None, smoothing: float) -> Tensor:
    """Each row's loss, computed in float32 at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    weight = None if weight is None else weight.to(x.dtype)
    return F.cross_entropy(
        x, labels, weight, ignore_index=IGNORED, label_smoothing=smoothing, reduction="none"
    )


def reference_gradient(
    x: Tensor, labels: Tensor, weight: Tensor | None, smoothing: float, upstream: Tensor
) -> Tensor:
    x = x.detach().requires_grad_()
    losses = F.cross_entropy(
        x,
        labels,
        None if weight is None else weight.to(x.dtype),
        ignore_index=IGNORED,
        label_smoothing=smoothing,
        reduction="none",
    )
    return torch.autograd.grad(losses, x, upstream.to(losses.dtype))[0]


def assert_close(op: Any, ours: Tensor, x: Tensor, *inputs: Any) -> None:
    if x.dtype == torch.float64:  # as exact as what it would be held against
        torch.testing.assert_close(ours, op(x, *inputs), rtol=1e-12, atol=1e-13)
    else:
        assert_within_torch(op, ours, x, *inputs)


def assert_equals_torch(rows: Rows, place: Place) -> None:
    losses, softmax = losses_of(rows, place)
    given = rows.labels, rows.weight, rows.smoothing
    assert_close(reference, losses, rows.x, *given)
    upstream = random(len(rows.x), seed=2).bfloat16().to(losses)
    dx = gradient_of(rows, place, softmax, upstream, poison(*rows.x.shape).to(rows.x))
    assert_close(reference_gradient, dx, rows.x, *given, upstream)
    inplace = replace(rows, x=rows.x.clone())
    assert torch.equal(gradient_of(inplace, place, softmax, upstream, inplace.x), dx)


@pytest.mark.parametrize(
    ("weighted", "smoothing"), [(False, 0.0), (True, 0.0), (False, 0.1), (True, 0.25)]
)
@pytest.mark.parametrize("classes", CLASSES)
def test_equals_torch(
    training_place: Place, classes: int, weighted: bool, smoothing: float
) -> None:
    rows = rows_at(training_place, 7, classes, weighted=weighted, smoothing=smoothing)
    assert_equals_torch(rows, training_place)


def test_the_most_classes(training_place: Place) -> None:
    """On a GPU a cluster has each of so few rows."""
    assert_equals_torch(rows_at(training_place, 3, 262144, smoothing=0.1), training_place)


def test_many_long_rows(training_place: Place) -> None:
    """On a GPU a block has each of them."""
    count = 9 if training_place.device == "cpu" else 600
    rows = rows_at(training_place, count, 20000, weighted=True, smoothing=0.1)
    assert_equals_torch(rows, training_place)


@given(
    st.sampled_from([place for place in TRAINING_PLACES if place.device == "cpu"]),
    st.integers(1, 20),
    st.integers(2, 1200),
    st.booleans(),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    st.floats(0, 30, width=16),
)
@settings(max_examples=25)
def test_any_rows(
    place: Place, count: int, classes: int, weighted: bool, smoothing: float, scale: float
) -> None:
    rows = rows_at(place, count, classes, weighted=weighted, smoothing=smoothing)
    assert_equals_torch(replace(rows, x=rows.x * scale), place)


@pytest.mark.parametrize("classes", [5, 300, 5000])
def test_rows_far_from_zero_keep_their_precision(place: Place, classes: int) -> None:
    rows = rows_at(place, 6, classes, smoothing=0.1)
    assert_equals_torch(replace(rows, x=rows.x + 1000), place)
    assert_equals_torch(replace(rows, x=rows.x * 20 - 1000), place)


@pytest.mark.parametrize("classes", [8, 4099])
def test_infinite_logits(training_place: Place, classes: int) -> None:
    rows = rows_at(training_place, 7, classes)
    x = rows.x
    x[0, 5:] = -math.inf  # the label is among them, or not
    x[1, 5:] = -math.inf
    x[2] = -math.inf
    x[3, 4] = math.inf
    x[4, 0] = math.nan
    labels = torch.tensor([7, 2, 0, 0, 1, 3, IGNORED], device=x.device)
    rows = replace(rows, labels=labels)
    losses, _ = losses_of(rows, training_place)
    assert losses[0] == math.inf and losses[2:5].isnan().all() and losses[6] == 0
    rows = replace(rows, x=x[1:2].contiguous(), labels=labels[1:2].clone())
    assert_equals_torch(rows, training_place)
    rows = replace(rows, x=x[:1].contiguous(), labels=labels[:1].clone(), smoothing=0.1)
    assert losses_of(rows, training_place)[0] == math.inf


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("classes", [9, 700, 5003])
def test_tensors_anywhere_in_memory(training_place: Place, classes: int, offset: int) -> None:
    """Rows begin between two vectors, those of x and of dx not at the same distance."""
    rows = rows_at(training_place, 5, classes)
    x = torch.empty(rows.x.numel() + offset).to(rows.x)[offset:].view_as(rows.x).copy_(rows.x)
    moved = replace(rows, x=x)
    assert_equals_torch(moved, training_place)
    losses, softmax = losses_of(moved, training_place)
    ones = torch.ones(1).to(losses)
    dx = gradient_of(rows, training_place, softmax, ones, torch.empty_like(rows.x))
    from_moved = gradient_of(moved, training_place, softmax, ones, torch.empty_like(rows.x))
    assert torch.equal(from_moved, dx)
    to_moved = gradient_of(rows, training_place, softmax, ones, moved.x)
    assert torch.equal(to_moved, dx)


@pytest.mark.parametrize("classes", [5, 513, 5000])
@pytest.mark.parametrize("ignored", [IGNORED, 3])
def test_ignored_rows_whatever_they_hold(training_place: Place, classes: int, ignored: int) -> None:
    rows = rows_at(training_place, 5, classes, smoothing=0.1)
    labels = torch.full_like(rows.labels, ignored)
    rows = replace(rows, x=poison(5, classes).to(rows.x), labels=labels, ignored=ignored)
    losses, softmax = losses_of(rows, training_place)
    assert (losses == 0).all()
    upstream = torch.ones(1).to(losses)
    dx = gradient_of(rows, training_place, softmax, upstream, torch.full_like(rows.x, 7))
    assert (dx == 0).all()
    for mean in (False, True):
        total, count = total_of(rows, training_place, losses, mean)
        assert count == 0 and (total.isnan() if mean else total == 0)


def total_of(rows: Rows, place: Place, losses: Tensor, mean: bool) -> tuple[Tensor, Tensor]:
    total, count = poison(2, 1).to(losses)
    options = {k: v for k, v in rows.options(place).items() if k in ("weight", "ignored", "isa")}
    training.total_loss(losses, rows.labels, total, count, mean=mean, **options)
    return total, count


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [0, 1, 33, 3000])
def test_total(training_place: Place, count: int, weighted: bool) -> None:
    rows = rows_at(training_place, count, 5, weighted=weighted)
    losses, _ = losses_of(rows, training_place)
    total, divisor = total_of(rows, training_place, losses, mean=True)
    weight = torch.ones(5).to(losses) if rows.weight is None else rows.weight
    expected = weight[rows.labels[rows.labels != IGNORED]].sum()
    torch.testing.assert_close(divisor[0], expected)
    torch.testing.assert_close(total[0], losses.sum() / expected, equal_nan=True)
    torch.testing.assert_close(total_of(rows, training_place, losses, False)[0][0], losses.sum())


def test_upstream_and_count(training_place: Place) -> None:
    rows = rows_at(training_place, 6, 40, smoothing=0.1)
    losses, softmax = losses_of(rows, training_place)
    each = torch.full((6,), 0.5).to(losses)
    expected = gradient_of(rows, training_place, softmax, each, torch.empty_like(rows.x))
    dx = torch.empty_like(rows.x)
    two, four = torch.full((2, 1), 2.0).to(losses) * torch.tensor([[1], [2]]).to(losses)
    options = rows.options(training_place)
    training.cross_entropy_backward(rows.x, rows.labels, softmax, two, dx, count=four, **options)
    assert torch.equal(dx, expected)


def test_no_rows(training_place: Place, threads: int) -> None:
    rows = rows_at(training_place, 0, 7)
    losses, softmax = losses_of(rows, training_place, threads)
    dx = torch.empty_like(rows.x)
    assert gradient_of(rows, training_place, softmax, losses, dx).shape == (0, 7)


@pytest.mark.parametrize("classes", [33, 3000])
def test_the_number_of_threads_does_not_matter(classes: int) -> None:
    place = Place(ISAS[0])
    rows = rows_at(place, 13, classes, weighted=True, smoothing=0.1)
    found = []
    for threads in (1, 2, 3, 0):
        losses, softmax = losses_of(rows, place, threads)
        dx = torch.empty_like(rows.x)
        found.append((losses, gradient_of(rows, place, softmax, losses, dx, threads)))
    for losses, dx in found[1:]:
        assert torch.equal(losses, found[0][0]) and torch.equal(dx, found[0][1])


@pytest.mark.parametrize("label", [-1, -99, 7, 1 << 40])
def test_labels_that_are_no_class(label: int) -> None:
    rows = rows_at(Place(ISAS[0]), 3, 7)
    rows.labels[1] = label
    message = f"labels must be 0 to 6, or -100 where they are ignored, got {label}$"
    with pytest.raises(IndexError, match=message):
        losses_of(rows, Place(ISAS[0]))
    losses = torch.zeros(3)
    with pytest.raises(IndexError, match=message):
        gradient_of(rows, Place(ISAS[0]), torch.ones(3, 2), losses, torch.empty_like(rows.x))


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [7, 5000])
def test_a_gpu_reports_labels_that_are_no_class_in_the_next_call(classes: int) -> None:
    place = Place("cuda", torch.float16)
    rows = rows_at(place, 5, classes)
    wrong = replace(rows, labels=rows.labels.clone())
    wrong.labels[2] = classes
    losses, softmax = losses_of(wrong, place)
    torch.cuda.synchronize()
    assert losses.isnan().tolist() == [False, False, True, False, False]
    message = f"0 to {classes - 1}, or -100 .* got {classes} in an earlier call on cuda:0"
    with pytest.raises(IndexError, match=message):
        losses_of(rows, place)
    assert losses_of(rows, place)[0].isfinite().all()  # the GPU is well
    ones = torch.ones_like(losses)
    dx = gradient_of(wrong, place, softmax, ones, torch.full_like(rows.x, 7))
    assert (dx[2] == 0).all() and dx[0].any()


@pytest.mark.parametrize("isa", ISAS)
def test_every_half(isa: str) -> None:
    """A row's peak is its only logit, widened; half of an upstream gradient is rounded."""
    place = Place(isa, torch.float16)
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16)
    every = every[~every.isnan()]
    rows = Rows(every[:, None].contiguous(), torch.zeros(len(every), dtype=torch.int64))
    assert torch.equal(losses_of(rows, place)[1][:, 0], every.float())
    bits = torch.randint(-(1 << 31), (1 << 31) - 1, (1 << 16,), dtype=torch.int64)
    upstream = torch.cat([bits.int().view(torch.float32), every.float() * 2, every.float() * 3])
    rows = Rows(torch.zeros(len(upstream), 2).half(), torch.zeros(len(upstream)).long())
    dx = torch.empty_like(rows.x)
    softmax = torch.tensor([0.0, 2.0]).repeat(len(upstream), 1)
    expected = (0.5 * upstream).half()
    found = gradient_of(rows, place, softmax, upstream, dx)[:, 1]
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_calls_at_once() -> None:
    """The team of threads is one for all; a child that was forked makes its own."""
    place = Place(ISAS[0])
    rows = rows_at(place, 50, 3000)
    expected = losses_of(rows, place)[0]
    with ThreadPoolExecutor(3) as pool:
        for losses, _ in pool.map(lambda _: losses_of(rows, place, threads=2), range(6)):
            assert torch.equal(losses, expected)
    child = os.fork()
    if child == 0:
        same = torch.equal(losses_of(rows, place, threads=2)[0], expected)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
