"""decoding.nn's norms against torch's: what they add, gradients, types, modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding import nn
from decoding.nn.functional import (
    add_layer_norm,
    add_rms_norm,
    dropout,
    layer_norm,
    rms_norm,
)
from tests.conftest import assert_same_bits, random
from tests.training.gradients import DTYPES, assert_gradients_within_torch

COLS = 40


def inputs(device: str, dtype: torch.dtype, *shape: int) -> list[Tensor]:
    """x and a residual of `shape`, weight, bias, bias of the input: [last axis]."""
    parts = [random(*shape), random(*shape, seed=1)]
    parts += [random(shape[-1], seed=seed) for seed in (2, 3, 4)]
    return [part.to(device, dtype) for part in parts]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, COLS), (2, 3, 1024), (1, 1)])
def test_layer_norm(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, _, weight, bias, _ = inputs(device, dtype, *shape)
    cols = shape[-1:]
    assert_gradients_within_torch(
        lambda x, w, b: layer_norm(x, cols, w, b),
        lambda x, w, b: F.layer_norm(x, cols, w, b),
        *(x, weight, bias),
    )
    assert_gradients_within_torch(
        lambda x: layer_norm(x, cols, eps=0.1), lambda x: F.layer_norm(x, cols, eps=0.1), x
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(device: str, dtype: torch.dtype) -> None:
    x, _, weight, _, _ = inputs(device, dtype, 5, COLS)
    for how in ({}, {"eps": 0.1}):
        assert_gradients_within_torch(
            lambda x, w, how=how: rms_norm(x, (COLS,), w, **how),
            lambda x, w, how=how: F.rms_norm(x, (COLS,), w, **how),
            *(x, weight),
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_residual_and_a_bias(device: str, dtype: torch.dtype, rms: bool, biased: bool) -> None:
    """Both results have gradients of their own."""
    x, residual, weight, bias, extra = inputs(device, dtype, 2, 4, COLS)

    def ours(x: Tensor, residual: Tensor, w: Tensor, b: Tensor, extra: Tensor) -> Any:
        how: dict[str, Any] = {"input_bias": extra} if biased else {}
        if rms:
            return add_rms_norm(x, residual, (COLS,), w, **how)
        return add_layer_norm(x, residual, (COLS,), w, b, **how)

    def theirs(x: Tensor, residual: Tensor, w: Tensor, b: Tensor, extra: Tensor) -> Any:
        total = x + extra + residual if biased else x + residual
        if rms:
            return F.rms_norm(total, (COLS,), w), total
        return F.layer_norm(total, (COLS,), w, b), total

    used = (x, residual, weight, bias, extra)
    assert_gradients_within_torch(*unused_are_constants(ours, theirs, used, rms, biased))


def unused_are_constants(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    given: tuple[Tensor, ...],
    rms: bool,
    biased: bool,
) -> tuple[Any, ...]:
    """The same functions of the arguments that matter: autograd has no gradient for others."""
    keep = [0, 1, 2] + [3] * (not rms) + [4] * biased

    def of_kept(op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*some: Tensor) -> Any:
            full = [x.to(some[0].dtype) for x in given]
            for place, x in zip(keep, some, strict=True):
                full[place] = x
            return op(*full)

        return call

    return of_kept(ours), of_kept(theirs), *(given[i] for i in keep)


@pytest.mark.parametrize("rms", [False, True])
def test_gradcheck(rms: bool) -> None:
    x, residual, weight, bias, extra = (
        part.requires_grad_() for part in inputs("cpu", torch.float64, 3, 5)
    )
    if rms:
        assert torch.autograd.gradcheck(
            lambda *g: add_rms_norm(g[0], g[1], (5,), g[2], input_bias=g[3]),
            (x, residual, weight, extra),
        )
        return
    assert torch.autograd.gradcheck(
        lambda *g: add_layer_norm(g[0], g[1], (5,), g[2], g[3], input_bias=g[4]),
        (x, residual, weight, bias, extra),
    )


def test_gradients_have_the_same_bits_every_time(device: str) -> None:
    x, _, weight, bias, _ = (
        part.requires_grad_() for part in inputs(device, torch.float32, 301, 257)
    )
    found = []
    for _ in range(2):
        y = layer_norm(x, (257,), weight, bias)
        found.append(torch.autograd.grad(y.sin().sum(), (x, weight, bias)))
    for first, second in zip(*found, strict=True):
        assert_same_bits(first.cpu(), second.cpu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_weights_beside_half_precision(device: str, dtype: torch.dtype) -> None:
    """As in mixed precision; the result stays of the input's type, and gradients of theirs."""
    x, residual, _, _, _ = inputs(device, dtype, 6, COLS)
    _, _, weight, bias, extra = inputs(device, torch.float32, 6, COLS)
    leaves = [part.requires_grad_() for part in (x, residual, weight, bias, extra)]
    y, total = add_layer_norm(x, residual, (COLS,), weight, bias, input_bias=extra)
    assert y.dtype == total.dtype == dtype
    gradients = torch.autograd.grad([y, total], leaves, [torch.ones_like(y)] * 2)
    assert [g.dtype for g in gradients] == [dtype] * 2 + [torch.float32] * 3
    wide = [leaf.detach().float().requires_grad_() for leaf in leaves]
    summed = (wide[0] + wide[4] + wide[1]).to(dtype).float()
    expected = F.layer_norm(summed, (COLS,), wide[2], wide[3])
    torch.testing.assert_close(y.float(), expected, rtol=1e-2, atol=1e-2)
    ones = torch.ones_like(summed)
    theirs = torch.autograd.grad([expected, summed], wide, [ones, ones])
    for found, exact in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(found.float(), exact, rtol=2e-2, atol=2e-2)


def test_autocast_keeps_the_inputs_type(device: str) -> None:
    x = random(3, COLS).to(device, torch.bfloat16)
    module = nn.LayerNorm(COLS, device=device)
    with torch.autocast(device, torch.bfloat16):
        assert module(x).dtype == torch.bfloat16


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_residuals_of_another_type_are_met_by_the_wider(device: str, rate: float) -> None:
    """Gradients keep the types of what they belong to."""
    for dtypes in [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]:
        x, residual = (
            random(3, COLS, seed=i).to(device, dtype).requires_grad_()
            for i, dtype in enumerate(dtypes)
        )
        y, total = add_layer_norm(x, residual, (COLS,), dropout=rate)
        assert y.dtype == total.dtype == torch.float32
        gradients = torch.autograd.grad(y.sin().sum() + total.sum(), (x, residual))
        assert tuple(gradient.dtype for gradient in gradients) == dtypes
        if rate == 0:
            assert_same_bits(total.detach().cpu(), (x + residual).detach().cpu())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rms", [False, True])
def test_dropout_before_the_residual(device: str, dtype: torch.dtype, rms: bool) -> None:
    """It drops what functional.dropout drops."""
    x, residual, weight, _, extra = inputs(device, dtype, 6, COLS)
    torch.manual_seed(3)
    kept = dropout(torch.ones_like(x, dtype=torch.float32), 0.3) != 0

    def ours(x: Tensor, residual: Tensor, w: Tensor, extra: Tensor) -> Any:
        torch.manual_seed(3)
        add_norm = add_rms_norm if rms else add_layer_norm
        return add_norm(x, residual, (COLS,), w, input_bias=extra, dropout=0.3)

    def theirs(x: Tensor, residual: Tensor, w: Tensor, extra: Tensor) -> Any:
        total = (x + extra) * kept / 0.7 + residual
        return (F.rms_norm if rms else F.layer_norm)(total, (COLS,), w), total

    assert_gradients_within_torch(ours, theirs, x, residual, weight, extra)


def test_modules_drop_in_training_alone() -> None:
    x = random(50, COLS)
    for module in (nn.LayerNorm(COLS), nn.RMSNorm(COLS)):
        torch.manual_seed(3)
        y = module(x, dropout=0.5)
        torch.manual_seed(3)
        torch.testing.assert_close(y, module(dropout(x, 0.5)))
        assert_same_bits(module.eval()(x, dropout=0.5).detach(), module(x).detach())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_modules_are_torchs(bias: bool, affine: bool) -> None:
    x, residual = random(2, 3, 4, 5), random(2, 3, 4, 5, seed=1)
    ours = nn.LayerNorm((4, 5), 1e-3, affine, bias)
    theirs = torch.nn.LayerNorm((4, 5), 1e-3, affine, bias)
    for i, parameter in enumerate(theirs.parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(i))
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))
    y, total = ours(x, residual)
    torch.testing.assert_close(y, theirs(x + residual))
    assert_same_bits(total, x + residual)
    rms, their_rms = nn.RMSNorm((4, 5)), torch.nn.RMSNorm((4, 5))
    rms.load_state_dict(their_rms.state_dict())
    torch.testing.assert_close(rms(x), their_rms(x))
    torch.testing.assert_close(rms(x, residual)[0], their_rms(x + residual))
    torch.testing.assert_close(rms(x, None, x[0, 0]), their_rms(x + x[0, 0]))


def test_layouts_and_no_rows() -> None:
    x = random(4, 3, COLS).transpose(0, 1).requires_grad_()
    torch.testing.assert_close(layer_norm(x, (COLS,)), F.layer_norm(x, (COLS,)))
    weight = random(COLS).requires_grad_()
    nothing = layer_norm(x[:0], (COLS,), weight)
    assert nothing.shape == (0, 4, COLS)
    (gradient,) = torch.autograd.grad(nothing.sum(), weight)
    assert (gradient == 0).all()


def test_only_the_sum_is_used() -> None:
    x, residual = random(3, COLS).requires_grad_(), random(3, COLS, seed=1).requires_grad_()
    _, total = add_layer_norm(x, residual, (COLS,))
    upstream = random(3, COLS, seed=2)
    for gradient in torch.autograd.grad(total, (x, residual), upstream):
        assert_same_bits(gradient, upstream)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"normalized_shape": (3,)}, r"must end in \[3\], it is \[2, 40\]"),
        ({"normalized_shape": ()}, r"must end in \[\]"),
        ({"weight": random(3)}, r"weight must be \[40\], got \[3\]"),
        ({"input_bias": random(2, COLS)}, r"input_bias must be \[40\], got \[2, 40\]"),
        ({"residual": random(1, COLS)}, r"residual must be \[2, 40\]"),
        ({"dropout": 1.5}, "probability of dropping must be from 0 to 1, got 1.5"),
    ],
)
def test_bad_shapes(how: dict[str, Any], text: str) -> None:
    how = {"normalized_shape": (COLS,), "residual": random(2, COLS), **how}
    with pytest.raises(ValueError, match=text):
        add_layer_norm(random(2, COLS), **how)
