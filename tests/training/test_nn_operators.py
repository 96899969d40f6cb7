"""decoding.nn as torch sees it: opcheck, torch.compile, copies, no second derivative."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from decoding import nn
from decoding.nn.functional import cross_entropy, layer_norm, linear_cross_entropy
from tests.conftest import assert_same_bits, random

ops = torch.ops.decoding


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).requires_grad_()


def cases() -> list[Any]:
    labels = torch.tensor([1, 5, 6, 0, 2])  # no softmax is written for a row that is ignored
    ids, seed = torch.tensor([3, 0, 3, 9]), torch.tensor([7])
    loss = (labels, random(7).abs(), -100, 0.1)
    rows, columns = random(5, 7), [leaf(7, seed=i) for i in range(3)]
    ones = (random(5, 2).abs(), torch.tensor(1.0), torch.ones(1), -100, 0.1)
    product = (leaf(5, 3), leaf(7, 3), leaf(7), *loss)
    embedded = (ids, leaf(10, 4), leaf(6, 4))
    half = random(5, 7).bfloat16().requires_grad_()
    return [
        (ops.cross_entropy, (leaf(5, 7), *loss, "mean", torch.float32, False)),
        (ops.cross_entropy, (leaf(5, 7), *loss, "none", torch.float32, False)),
        (ops.cross_entropy_gradient, (rows, *loss[:2], *ones)),
        (ops.cross_entropy_gradient_, (rows, *loss[:2], *ones)),
        (
            ops.linear_cross_entropy,
            (*product, "mean", torch.float32, [True, True, True], 2, False),
        ),
        (
            ops.linear_cross_entropy,
            (*product, "none", torch.float32, [True, False, True], 2, False),
        ),
        (ops.norm, (leaf(5, 7), *columns[:2], 1e-5, False)),
        (ops.norm, (leaf(5, 7), columns[0], None, 1e-5, True)),
        (ops.add_norm, (leaf(5, 7), leaf(5, 7, seed=1), *columns, 1e-5, False, 0.0, None)),
        (ops.add_norm, (half, leaf(5, 7, seed=1), None, columns[0], None, 1e-5, True, 0.3, seed)),
        (ops.embed, (*embedded, None, 2, 0, 2.0, 0.0, None)),
        (ops.embed, (*embedded, torch.tensor([0, 5, 1, 0]), 4, -1, 1.0, 0.4, seed)),
        (ops.dropout, (leaf(5, 7), 0.3, seed)),
        (ops.softmax, (leaf(5, 7),)),
    ]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{i}-{case[0].__name__}") for i, case in enumerate(cases())]
)
def test_opcheck(case: Any) -> None:
    operator, given = case
    opcheck(operator.default, given)


class Small(torch.nn.Module):
    """Every module once."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        positions = torch.nn.Parameter(random(6, 8))
        self.embed = nn.Embedding(11, 8, 0, scale=2.0, positions=positions, dropout=dropout)
        self.norm, self.rms = nn.LayerNorm(8), nn.RMSNorm(8)
        self.softmax, self.dropout = nn.Softmax(-1), nn.Dropout(dropout)
        self.output = torch.nn.Linear(8, 11)
        self.loss = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
        self.linear_loss = nn.LinearCrossEntropyLoss(8, 11, chunk=4)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids)
        y, total = self.norm(self.dropout(x), x, dropout=self.dropout.p)
        y = self.rms(total + self.softmax(y)).flatten(0, 1)
        first: Tensor = self.loss(self.output(y), labels.flatten())
        second: Tensor = self.linear_loss(y, labels.flatten())
        return first + second


def small(dropout: float = 0.0) -> tuple[Small, Tensor, Tensor]:
    torch.manual_seed(0)
    ids, labels = torch.randint(11, (2, 3, 5))
    return Small(dropout), ids, labels


def gradients(model: torch.nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_gradients_have_the_same_bits_every_time(device: str) -> None:
    """Of every module, with the masks of one seed. On a GPU embeddings need torch's setting."""
    enabled = torch.are_deterministic_algorithms_enabled()
    # warn_only: cuBLAS has a setting of its own, for several streams.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = []
        for _ in range(2):
            model, *_ = small(dropout=0.3)
            ids, labels = torch.randint(11, (2, 500, 5)).to(device)
            found.append(gradients(model.to(device), model(ids, labels)))
    finally:
        torch.use_deterministic_algorithms(enabled)
    for first, second in zip(*found, strict=True):
        assert_same_bits(first.cpu(), second.cpu())


def test_fuse_takes_torchs_modules_in_their_place() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(11, 8, 0), torch.nn.LayerNorm(8), torch.nn.RMSNorm(8), torch.nn.Dropout()
    )
    model.append(torch.nn.Embedding(3, 2, max_norm=1.0)).append(torch.nn.Dropout(inplace=True))
    ids, kept, names = torch.arange(11), list(model.parameters()), list(model.state_dict())
    expected = model[:3](ids)
    nn.fuse(model)
    assert [type(part).__module__.partition(".")[0] for part in model] == ["decoding"] * 4 + [
        "torch"
    ] * 2
    torch.testing.assert_close(model[:3](ids), expected)
    assert (model[3](torch.ones(100)) == 0).any()
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), kept, strict=True))


def assert_equals_eager(model: Small, compiled: Any, ids: Tensor, labels: Tensor) -> None:
    loss, expected = compiled(ids, labels), model(ids, labels)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients(model, loss), gradients(model, expected), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_compiled_without_a_break() -> None:
    model, ids, labels = small()
    assert_equals_eager(model, torch.compile(model, fullgraph=True), ids, labels)


def test_traced_for_all_sizes() -> None:
    model, ids, labels = small()
    traced = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (5, 3, 4):
        assert_equals_eager(model, traced, ids[:, :length], labels[:, :length])


def test_dropout_follows_torchs_seed_where_it_is_traced() -> None:
    """The backward pass of a traced graph drops what its forward pass did."""
    x = torch.ones(64, 64, requires_grad=True)
    traced = torch.compile(nn.Dropout(0.5), backend="aot_eager", fullgraph=True)
    torch.manual_seed(0)
    first, second = traced(x), traced(x)
    assert not torch.equal(first, second)
    for y in (first, second):
        assert_same_bits(torch.autograd.grad(y.sum(), x)[0], y.detach())
    torch.manual_seed(0)
    assert_same_bits(traced(x).detach(), first.detach())


def test_copies_and_checkpointing() -> None:
    model, ids, labels = small()
    twin = copy.deepcopy(model)
    loss = model(ids, labels)
    assert_same_bits(loss.detach(), twin(ids, labels).detach())
    recomputed = torch.utils.checkpoint.checkpoint(model, ids, labels, use_reentrant=False)
    assert isinstance(recomputed, Tensor)
    for ours, theirs in zip(gradients(model, recomputed), gradients(model, loss), strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("name", ["cross_entropy", "linear_cross_entropy", "layer_norm"])
def test_there_is_no_second_derivative(name: str) -> None:
    x, labels = leaf(5, 7), torch.tensor([1, -100, 6, 0, 2])
    if name == "cross_entropy":
        y = cross_entropy(x, labels)
    elif name == "layer_norm":
        y = layer_norm(x, (7,)).sin().sum()
    else:
        y = linear_cross_entropy(x, leaf(7, 7), labels, reduction="none").sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


def test_threads_of_torchs(threads: int) -> None:
    """Enough work to be shared among them: the same bits with any number."""
    x, labels = leaf(64, 2000), torch.arange(64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        loss = cross_entropy(x, labels, reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), x)
    finally:
        torch.set_num_threads(before)
    alone = cross_entropy(x, labels, reduction="none")
    assert_same_bits(loss.detach(), alone.detach())
    assert_same_bits(gradient, torch.autograd.grad(alone.sum(), x)[0])


def test_no_derivative_in_forward_mode() -> None:
    x = torch.randn(2, 4)
    norm, softmax = nn.LayerNorm(4), nn.Softmax(-1)
    for operator in (norm, softmax):
        with pytest.raises(NotImplementedError, match="forward mode"):
            torch.func.jvp(operator, (x,), (torch.ones_like(x),))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            with pytest.raises(NotImplementedError, match="forward mode"):
                operator(dual)
            assert_same_bits(operator(x).detach(), operator(x).detach())


def test_a_traced_module_computes() -> None:
    """torch.jit.trace without gradients, too, which else saw no operator at all."""
    norm, x = nn.LayerNorm(4), torch.randn(2, 4)
    with torch.no_grad():
        traced = torch.jit.trace(norm, x)
        assert_same_bits(traced(2 * x + 1), norm(2 * x + 1))
