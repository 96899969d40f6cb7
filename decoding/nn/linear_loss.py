"""Cross-entropy of a linear layer's output in chunks of rows, never holding all logits at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoding.nn.loss import (
    check_options,
    check_target,
    class_weights,
    loss_dtype,
    reduced,
    softmax_losses,
    write_gradient,
)
from decoding.nn.operators import autocast, operator, sum_dtype

CHUNK = 1024  # rows whose logits are there at once
CHUNKS = 16  # at most: each rounds the weight's gradient once more, which half precision shows
NO_ROW = 1e-30  # the divisor where no row counts: gradients of 0 stay 0


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: None = None,
    chunk: int | None = None,
    inplace: bool = True,
) -> Tensor:
    """cross_entropy(linear(input, linear_weight, linear_bias), target), as torch.nn.functional's
    namesake (torch 2.13), with the logits of `chunk` rows at a time; None: 1024, or of N / 16.

    input: [H] or [N, H]; linear_weight: [C, H]; linear_bias: [C]; target: int64, [] or [N]; the
    rest as for `cross_entropy`. Gradients are computed beside a loss that is one number; the
    backward pass multiplies them in place, so that there is only one, without `inplace` into new
    memory. With reduction "none" it computes the logits again. Under autocast products are of its
    type.

    Raises NotImplementedError for class probabilities, more axes of classes and torch's `options`
    (`chunk` takes their place), else as `cross_entropy`.
    """
    if options is not None:
        raise NotImplementedError("options: say chunk=, the rows whose logits are there at once")
    check_options(reduction, label_smoothing)
    check_shapes(input, linear_weight, linear_bias, chunk)
    classes = len(linear_weight)
    check_target(target, classes, input.shape[:-1])
    x = input.reshape(-1, input.shape[-1]).contiguous()
    given = (x, linear_weight, linear_bias)
    wanted = [torch.is_grad_enabled() and part is not None and part.requires_grad for part in given]
    loss: Tensor
    loss, *_ = linear_cross_entropy_rows(
        *autocast(*given),
        target.reshape(-1).contiguous(),
        class_weights(weight, classes, sum_dtype(input)),
        -100 if ignore_index is None else ignore_index,
        label_smoothing,
        reduction,
        loss_dtype(input),
        wanted,
        chunk or max(CHUNK, math.ceil(len(x) / CHUNKS)),
        inplace and not torch.compiler.is_compiling(),
    )
    return loss.view(target.shape) if reduction == "none" else loss


class LinearCrossEntropyLoss(nn.Module):
    """torch.nn.LinearCrossEntropyLoss (torch 2.13): `linear`, and the cross-entropy of what it
    gives, never held all at once. forward(input [N, in_features], target [N])."""

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        chunk: int | None = None,
        inplace: bool = True,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes, bias, device, dtype)
        self.register_buffer("weight", weight)
        self.reduction, self.ignore_index = reduction, ignore_index
        self.label_smoothing, self.chunk, self.inplace = label_smoothing, chunk, inplace

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            linear_bias=self.linear.bias,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            chunk=self.chunk,
            inplace=self.inplace,
        )


def check_shapes(x: Tensor, matrix: Tensor, bias: Tensor | None, chunk: int | None) -> None:
    if matrix.ndim != 2:
        raise NotImplementedError("linear_weight must be [classes, features]")
    if x.ndim not in (1, 2) or x.shape[-1] != matrix.shape[1]:
        raise ValueError(
            f"input must be [{matrix.shape[1]}] or [N, {matrix.shape[1]}] as linear_weight, got "
            f"{list(x.shape)}"
        )
    if bias is not None and bias.shape != matrix.shape[:1]:
        raise ValueError(f"linear_bias must be [{len(matrix)}], got {list(bias.shape)}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")


def chunks(
    x: Tensor, matrix: Tensor, bias: Tensor | None, chunk: int
) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and their logits, [rows, C], until the next ones take their memory."""
    memory = x.new_empty(min(chunk, len(x)), len(matrix))
    for begin in range(0, len(x), chunk):
        rows = slice(begin, min(begin + chunk, len(x)))
        logits = memory[: rows.stop - begin]
        if bias is None:
            torch.mm(x[rows], matrix.T, out=logits)
        else:
            torch.addmm(bias, x[rows], matrix.T, out=logits)
        yield rows, logits


class Gradients:
    """Of x, [N, H], matrix, [C, H], and bias, [C], added up; empty where not wanted."""

    def __init__(
        self, x: Tensor, matrix: Tensor, wanted: Sequence[bool], scale: float = 1.0
    ) -> None:
        """scale: what those of matrix and bias are divided by."""
        self.x, self.matrix, self.scale = x, matrix, scale
        wants_x, wants_matrix, wants_bias = wanted
        self.dx = x.new_empty(x.shape if wants_x else 0)
        self.dmatrix = matrix.new_zeros(matrix.shape if wants_matrix else 0)
        self.dbias = matrix.new_zeros(len(matrix) if wants_bias else 0)

    def add(self, rows: slice, dlogits: Tensor) -> None:
        if self.dx.numel():
            torch.mm(dlogits, self.matrix, out=self.dx[rows])
        if self.dmatrix.numel():
            self.dmatrix.addmm_(dlogits.T, self.x[rows], alpha=1 / self.scale)
        if self.dbias.numel():
            total = dlogits.sum(0, dtype=sum_dtype(dlogits))
            self.dbias.add_(total, alpha=1 / self.scale)

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.dx, self.dmatrix, self.dbias


@operator("decoding::linear_cross_entropy", results=1)
def linear_cross_entropy_rows(
    x: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weight: Tensor | None,
    ignored: int,
    smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    wanted: Sequence[bool],
    chunk: int,
    inplace: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x: [N, H]; matrix: [C, H]; bias: [C]; labels: int64 [N]; weight: [C]; wanted: which of the
    first three need gradients; inplace: see `linear_cross_entropy`.

    Returns the loss, of `dtype`, [] or [N], divisors, and the gradients of the sum of all losses;
    empty with reduction "none". (Divided by many rows, those of the logits would be too small for
    float16.) divisors: of the gradients, [1]; in float16 of that of x and of the two others, [2],
    which are sums over the rows, and would else be too large.
    """
    losses = x.new_empty(len(x), dtype=sum_dtype(x))
    one = losses.new_ones(1)
    half = x.dtype == torch.float16
    scale = 2.0 ** (len(x).bit_length() // 2) if half else 1.0
    gradients = Gradients(x, matrix, wanted if reduction != "none" else [False] * 3, scale)
    for rows, logits in chunks(x, matrix, bias, chunk):
        held = (labels[rows], weight)
        losses[rows], softmax = softmax_losses(logits, *held, ignored, smoothing)
        if any(wanted) and reduction != "none":
            write_gradient(logits, *held, softmax, one, one, ignored, smoothing, logits)
            gradients.add(rows, logits)
    loss, count = reduced(losses, labels, weight, ignored, reduction)
    count.clamp_(min=NO_ROW)
    divisors = torch.cat([count, count / scale]) if half else count
    return loss.to(dtype), divisors, *gradients.get()


@linear_cross_entropy_rows.register_fake
def _(
    x: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weight: Tensor | None,
    ignored: int,
    smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    wanted: Sequence[bool],
    chunk: int,
    inplace: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    scalar = reduction != "none"
    loss = x.new_empty(() if scalar else len(x), dtype=dtype)
    gradients = Gradients(x, matrix, wanted if scalar else [False] * 3)
    divisors = x.new_empty(2 if x.dtype == torch.float16 else 1, dtype=sum_dtype(x))
    return loss, divisors, *gradients.get()


@operator("decoding::linear_cross_entropy_gradient")
def linear_cross_entropy_gradient(
    x: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weight: Tensor | None,
    dlosses: Tensor,
    ignored: int,
    smoothing: float,
    wanted: Sequence[bool],
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dlosses: [N], of each row's loss. Returns the gradients of x, matrix and bias."""
    gradients = Gradients(x, matrix, wanted)
    one = dlosses.new_ones(1, dtype=sum_dtype(x))
    for rows, logits in chunks(x, matrix, bias, chunk):
        held = (labels[rows], weight)
        _, softmax = softmax_losses(logits, *held, ignored, smoothing)
        write_gradient(logits, *held, softmax, dlosses[rows], one, ignored, smoothing, logits)
        gradients.add(rows, logits)
    return gradients.get()


@linear_cross_entropy_gradient.register_fake
def _(
    x: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weight: Tensor | None,
    dlosses: Tensor,
    ignored: int,
    smoothing: float,
    wanted: Sequence[bool],
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return Gradients(x, matrix, wanted).get()


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.ignored, ctx.smoothing, reduction, _, ctx.wanted, ctx.chunk, ctx.inplace = inputs
    ctx.scalar = reduction != "none"
    ctx.save_for_backward(*(output[1:] if ctx.scalar else tensors))


def backward(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.scalar:
        divisors, *gradients = ctx.saved_tensors
        first, last = (dloss.to(divisors.dtype) / divisors).expand(2).split(1)
        each = [*zip(gradients, (first, last, last), strict=True)]
        for gradient, factor in each if ctx.inplace else []:
            gradient.mul_(factor)
        if not ctx.inplace:
            gradients = [(gradient * factor).to(gradient.dtype) for gradient, factor in each]
    else:
        how = (ctx.ignored, ctx.smoothing, ctx.wanted, ctx.chunk)
        gradients = linear_cross_entropy_gradient(*ctx.saved_tensors, dloss, *how)
    wanted = zip(gradients, ctx.wanted, strict=True)
    return *(gradient if needed else None for gradient, needed in wanted), *[None] * 9


linear_cross_entropy_rows.register_autograd(backward, setup_context=keep)
