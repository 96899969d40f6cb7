"""decoding.nn's linear + cross-entropy: the same as one after the other, whatever the chunk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding import nn
from decoding.nn.functional import linear_cross_entropy
from tests.conftest import random
from tests.training.gradients import DTYPES, assert_gradients_within_torch
from tests.training.test_nn_loss import labels_for

CLASSES, FEATURES = 37, 8


def inputs(rows: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x, matrix = random(rows, FEATURES), random(CLASSES, FEATURES, seed=1)
    return tuple(  # type: ignore[return-value]
        part.to(device, dtype) for part in (x, matrix, random(CLASSES, seed=2))
    )


def one_after_the_other(
    x: Tensor, matrix: Tensor, bias: Tensor | None, labels: Tensor, **how: Any
) -> Tensor:
    return F.cross_entropy(F.linear(x, matrix, bias), labels, **how)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_equals_torch(device: str, dtype: torch.dtype, reduction: str, chunk: int) -> None:
    labels = labels_for(CLASSES, 17, ignored=-100).to(device)
    how: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
    assert_gradients_within_torch(
        lambda x, m, b: linear_cross_entropy(x, m, labels, linear_bias=b, chunk=chunk, **how),
        lambda x, m, b: one_after_the_other(x, m, b, labels, **how),
        *inputs(17, device, dtype),
    )


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_row_counts(device: str, dtype: torch.dtype, rows: int, inplace: bool) -> None:
    labels = torch.full((rows,), -100, device=device)
    x, matrix, bias = (part.requires_grad_() for part in inputs(rows, device, dtype))
    loss = linear_cross_entropy(x, matrix, labels, linear_bias=bias, inplace=inplace)
    (1e4 * loss).backward()
    assert loss.isnan()
    for part in (x, matrix, bias):
        assert part.grad is not None and not part.grad.any()


def test_many_rows_of_one_class_in_float16(device: str) -> None:
    """The sum of their gradients is too large for float16, and their mean is not."""
    x = torch.full((16384, FEATURES), 8.0, device=device, dtype=torch.float16)
    matrix, bias = (torch.zeros(*shape, device=device).half() for shape in ((3, FEATURES), (3,)))
    labels = torch.zeros(len(x), dtype=torch.int64, device=device)
    for part in (x, matrix, bias):
        part.requires_grad_()
    linear_cross_entropy(x, matrix, labels, linear_bias=bias).backward()
    assert matrix.grad is not None and bias.grad is not None
    expected = torch.tensor([-2 / 3, 1 / 3, 1 / 3], device=device)
    torch.testing.assert_close(bias.grad.float(), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(
        matrix.grad.float(), 8 * expected[:, None].expand(3, FEATURES), atol=8e-3, rtol=0
    )


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck(reduction: str) -> None:
    x, matrix, bias = (part.requires_grad_() for part in inputs(5, "cpu", torch.float64))
    labels, weight = labels_for(CLASSES, 5), random(CLASSES, seed=3).abs().double()
    how: dict[str, Any] = {"reduction": reduction, "weight": weight, "label_smoothing": 0.1}
    assert torch.autograd.gradcheck(
        lambda *given: linear_cross_entropy(
            given[0], given[1], labels, linear_bias=given[2], chunk=2, inplace=False, **how
        ),
        (x, matrix, bias),
        fast_mode=True,
    )


def test_only_what_needs_a_gradient_gets_one() -> None:
    x, matrix, bias = inputs(6, "cpu", torch.float32)
    labels, matrix = labels_for(CLASSES, 6), matrix.requires_grad_()
    linear_cross_entropy(x, matrix, labels, linear_bias=bias, chunk=4).backward()
    (expected,) = torch.autograd.grad(one_after_the_other(x, matrix, bias, labels), matrix)
    torch.testing.assert_close(matrix.grad, expected)
    with torch.no_grad():
        loss = linear_cross_entropy(x, matrix, labels)
    torch.testing.assert_close(loss, one_after_the_other(x, matrix, None, labels))
    assert not loss.requires_grad


def test_one_sample_and_none() -> None:
    x, matrix, _ = inputs(1, "cpu", torch.float32)
    loss = linear_cross_entropy(x[0], matrix, torch.tensor(3))
    torch.testing.assert_close(loss, one_after_the_other(x[0], matrix, None, torch.tensor(3)))
    nothing = x[:0].requires_grad_()
    labels = labels_for(CLASSES, 0)
    summed = linear_cross_entropy(nothing, matrix.requires_grad_(), labels, reduction="sum")
    summed.backward()
    assert summed == 0 and matrix.grad is not None and (matrix.grad == 0).all()


def test_a_second_backward_pass_raises() -> None:
    x, matrix, _ = inputs(6, "cpu", torch.float32)
    loss = linear_cross_entropy(x.requires_grad_(), matrix, labels_for(CLASSES, 6))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_float16_keeps_small_gradients() -> None:
    """A mean over many rows makes each gradient of a logit too small for float16."""
    x, matrix, bias = inputs(4096, "cpu", torch.float16)
    x, matrix, labels = x / 64, matrix.requires_grad_(), labels_for(CLASSES, 4096)
    linear_cross_entropy(x, matrix, labels).backward()
    exact = one_after_the_other(x.double(), matrix.double(), None, labels)
    (expected,) = torch.autograd.grad(exact, matrix)
    torch.testing.assert_close(matrix.grad, expected.half(), rtol=2e-2, atol=1e-6)


def test_autocast(device: str) -> None:
    x, matrix, bias = (part.requires_grad_() for part in inputs(9, device, torch.float32))
    labels = labels_for(CLASSES, 9).to(device)
    found = []
    for op in (
        lambda: linear_cross_entropy(x, matrix, labels, linear_bias=bias, chunk=4),
        lambda: one_after_the_other(x, matrix, bias, labels),
    ):
        with torch.autocast(device, torch.bfloat16):
            loss = op()
        found.append((loss, *torch.autograd.grad(loss, (x, matrix, bias))))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=5e-3)


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyLoss"), reason="torch before 2.13")
def test_the_module_is_torchs() -> None:
    how: dict[str, Any] = {"bias": True, "reduction": "sum", "weight": random(CLASSES).abs()}
    ours = nn.LinearCrossEntropyLoss(FEATURES, CLASSES, chunk=3, **how)
    x, labels = random(7, FEATURES), labels_for(CLASSES, 7)
    theirs = torch.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, **how)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x, labels), theirs(x, labels))


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"options": object()}, NotImplementedError, "chunk="),
        ({"linear_weight": random(5, 4, 8)}, NotImplementedError, r"\[classes, features\]"),
        ({"linear_weight": random(5, 7)}, ValueError, r"\[7\] or \[N, 7\]"),
        ({"linear_bias": random(5)}, ValueError, r"linear_bias must be \[37\]"),
        ({"chunk": 0}, ValueError, "at least 1, got 0"),
        ({"target": torch.full((6,), CLASSES)}, IndexError, "got 37"),
    ],
)
def test_bad_input(how: dict[str, Any], error: type[Exception], text: str) -> None:
    x, matrix, _ = inputs(6, "cpu", torch.float32)
    given = {"linear_weight": matrix, "target": labels_for(CLASSES, 6), **how}
    with pytest.raises(error, match=text):
        linear_cross_entropy(x, **given)
