"""decoding.nn's cross-entropy against torch's: meaning, gradients, and where they are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding import nn
from decoding.nn.functional import cross_entropy
from tests.conftest import assert_same_bits, random
from tests.training.gradients import DTYPES, assert_gradients_within_torch


def labels_for(classes: int, *shape: int, ignored: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(classes, shape, generator=generator)
    if ignored is not None:
        labels[torch.rand(shape, generator=generator) < 0.3] = ignored
    return labels


options = st.fixed_dictionaries(
    {
        "reduction": st.sampled_from(["none", "mean", "sum"]),
        "label_smoothing": st.sampled_from([0.0, 0.1, 1.0]),
        "ignore_index": st.sampled_from([-100, 0, 2]),
    }
)


@given(
    batch=st.lists(st.integers(0, 4), max_size=3),
    classes=st.integers(1, 40),
    weighted=st.booleans(),
    how=options,
)
@settings(max_examples=60)
def test_means_what_torchs_does(
    batch: list[int], classes: int, weighted: bool, how: dict[str, Any]
) -> None:
    shape = (*batch[:1], classes, *batch[1:])
    x, labels = random(*shape), labels_for(classes, *batch, ignored=how["ignore_index"])
    weight = random(classes, seed=3).abs() if weighted else None
    assert_gradients_within_torch(
        lambda x: cross_entropy(x, labels, weight, **how),
        lambda x: F.cross_entropy(x, labels, None if weight is None else weight.to(x), **how),
        x,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_equals_torch(device: str, dtype: torch.dtype, reduction: str) -> None:
    x = 3 * random(9, 1003).to(device, dtype)
    labels = labels_for(1003, 9, ignored=-100).to(device)
    how: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
    assert_gradients_within_torch(
        lambda x: cross_entropy(x * 1, labels, **how),
        lambda x: F.cross_entropy(x, labels, **how),
        x,
    )
    assert cross_entropy(x, labels).dtype == dtype


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck(reduction: str) -> None:
    x, labels = random(5, 7).double().requires_grad_(), labels_for(7, 5, ignored=-100)
    weight = random(7, seed=3).abs().double()
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy(x, labels, weight, reduction=reduction, label_smoothing=0.1), x
    )


def test_the_gradient_takes_the_logits_place(device: str) -> None:
    x, labels = random(5, 7).to(device).requires_grad_(), labels_for(7, 5).to(device)
    expected = torch.autograd.grad(cross_entropy(x, labels), x)[0]  # of a leaf: elsewhere
    logits = x * 1
    cross_entropy(logits, labels).backward()
    assert x.grad is not None
    assert_same_bits(x.grad, expected)
    assert_same_bits(logits.detach(), expected)
    assert x.grad.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("shape", [(35,), (1, 35), (5, 7)])
def test_leaves_and_their_views_stay(shape: tuple[int, ...]) -> None:
    x, before = random(*shape).requires_grad_(), random(*shape)
    cross_entropy(x.view(5, 7), labels_for(7, 5)).backward()
    assert_same_bits(x.detach(), before)
    logits = x * 1
    cross_entropy(logits.view(5, 7), labels_for(7, 5), inplace=False).backward()
    assert_same_bits(logits.detach(), before)


def test_a_part_of_the_logits() -> None:
    """What is not contiguous is copied once, and the copy overwritten."""
    x = random(2, 6, 7).requires_grad_()
    logits, labels = x * 1, labels_for(7, 2, 5)
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())
    (ours,) = torch.autograd.grad(loss, x)
    expected = F.cross_entropy(x[:, :-1].flatten(0, 1), labels.flatten())
    torch.testing.assert_close(ours, torch.autograd.grad(expected, x)[0])
    assert_same_bits(logits.detach(), x.detach())
    strided = labels.T.contiguous().T[0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(
        cross_entropy(x[0, :-1], strided), F.cross_entropy(x[0, :-1], strided)
    )


def test_autograd_raises_for_whoever_else_needs_the_logits() -> None:
    x, labels = random(5, 7).requires_grad_(), labels_for(7, 5)
    capped = x.tanh()  # its derivative is of its result
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        cross_entropy(capped, labels).backward()
    (ours,) = torch.autograd.grad(cross_entropy(x.tanh(), labels, inplace=False), x)
    (expected,) = torch.autograd.grad(F.cross_entropy(x.tanh(), labels), x)
    torch.testing.assert_close(ours, expected)


def test_a_second_backward_pass_raises() -> None:
    x, labels = random(5, 7).requires_grad_(), labels_for(7, 5)
    loss = cross_entropy(x * 1, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    kept = cross_entropy(x * 1, labels, inplace=False)
    first, second = (torch.autograd.grad(kept, x, retain_graph=True)[0] for _ in range(2))
    assert_same_bits(first, second)


def test_logits_used_twice() -> None:
    x, labels = random(5, 7).requires_grad_(), labels_for(7, 5)

    def loss(x: Tensor, theirs: bool) -> Tensor:
        logits = x * 1
        other = (logits * 2).sum()
        return other + (F.cross_entropy if theirs else cross_entropy)(logits, labels)

    ours, expected = (torch.autograd.grad(loss(x, theirs), x)[0] for theirs in (False, True))
    torch.testing.assert_close(ours, expected)


def test_hooks_see_the_gradient() -> None:
    x, labels, seen = random(5, 7).requires_grad_(), labels_for(7, 5), list[Tensor]()
    logits = x * 1
    logits.register_hook(lambda gradient: seen.append(gradient.clone()))
    cross_entropy(logits, labels).backward()
    assert x.grad is not None
    assert_same_bits(seen[0], x.grad)
    assert seen[0].grad_fn is None


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [0, 4])
def test_no_row_counts(device: str, reduction: str, rows: int) -> None:
    """The mean of nothing is NaN, as torch's, with no gradient."""
    x = random(rows, 7).to(device).requires_grad_()
    labels = torch.full((rows,), -100, device=device)
    ours, theirs = (f(x, labels, reduction=reduction) for f in (cross_entropy, F.cross_entropy))
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    (gradient,) = torch.autograd.grad(ours.sum(), x)
    assert (gradient == 0).all()


def test_autocast_makes_the_loss_float32(device: str) -> None:
    x, labels = random(5, 7).to(device, torch.bfloat16), labels_for(7, 5).to(device)
    with torch.autocast(device, torch.bfloat16):
        loss = cross_entropy(x, labels)
        assert loss.dtype == F.cross_entropy(x, labels).dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(x.float(), labels))


def test_the_module_is_torchs() -> None:
    weight, x, labels = random(7).abs(), random(5, 7), labels_for(7, 5)
    how: dict[str, Any] = {"reduction": "sum", "label_smoothing": 0.2}
    ours, theirs = nn.CrossEntropyLoss(weight, **how), torch.nn.CrossEntropyLoss(weight, **how)
    torch.testing.assert_close(ours(x, labels), theirs(x, labels))
    ours.load_state_dict(theirs.state_dict())
    with pytest.warns(UserWarning, match="deprecated"):  # torch's own
        summed = cross_entropy(x, labels, size_average=False)
    torch.testing.assert_close(summed, F.cross_entropy(x, labels, reduction="sum"))


@pytest.mark.parametrize(
    ("shape", "how", "error", "text"),
    [
        ((5, 7), {"target": random(5, 7)}, NotImplementedError, "class probabilities"),
        ((5, 7), {"target": torch.zeros(5, dtype=torch.int32)}, ValueError, r"target.long\(\)"),
        ((5, 7), {"target": torch.zeros(4, dtype=torch.int64)}, ValueError, r"\[5\]"),
        ((5, 0), {}, ValueError, "at least one class"),
        ((5, 7), {"weight": torch.ones(6)}, ValueError, r"weight must be \[7\]"),
        ((5, 7), {"reduction": "median"}, ValueError, "none, mean, sum, got 'median'"),
        ((5, 7), {"label_smoothing": 1.5}, ValueError, "from 0 to 1, got 1.5"),
        ((5, 7), {"target": torch.full((5,), 7)}, IndexError, "0 to 6.*got 7"),
        ((5, 7), {"target": torch.full((5,), -1)}, IndexError, "got -1"),
    ],
)
def test_bad_input(
    shape: tuple[int, ...], how: dict[str, Any], error: type[Exception], text: str
) -> None:
    how = {"target": torch.zeros(5, dtype=torch.int64), **how}
    with pytest.raises(error, match=text):
        cross_entropy(random(*shape), **how)


@pytest.mark.gpu
def test_a_wrong_label_on_a_gpu_is_told_later() -> None:
    x, labels = random(5, 7).cuda().requires_grad_(), labels_for(7, 5).cuda()
    labels[3] = 9
    losses = cross_entropy(x, labels, reduction="none")
    assert losses.isnan().tolist() == [False] * 3 + [True, False]
    with pytest.raises(IndexError, match="got 9 in an earlier call"):
        losses.sum().backward()
    assert cross_entropy(x, labels.clamp(max=6)).isfinite()
