"""Cross-entropy that reads the logits twice and writes their gradient over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from decoding._C import training
from decoding.nn.operators import new_numbers, operator, sum_dtype

REDUCTIONS = ("none", "mean", "sum")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    inplace: bool = True,
) -> Tensor:
    """torch.nn.functional.cross_entropy for class indices, without a second [tokens, classes].

    input: logits [C], [N, C] or [N, C, d1, ...], fastest where the classes lie together; target:
    int64, without C. Sums are float32 (float64 for float64); the loss has the logits' type, under
    autocast float32. inplace: the backward pass writes the gradient over the logits, which are lost
    then: autograd raises where somebody else needs them, but `logits.argmax()` after `backward()`
    does not. It spares leaves and their views, and in torch.compile the gradient is a new tensor.

    Raises NotImplementedError for class probabilities, ValueError for shapes and options that do
    not fit, IndexError for a label that is no class: on a GPU one of the next calls does, since
    none waits for it, and the label's loss is NaN.
    """
    if size_average is not None or reduce is not None:
        reduction = nn._reduction.legacy_get_string(size_average, reduce)
    check_options(reduction, label_smoothing)
    logits, labels = input, target
    if input.ndim == 2:
        check_target(target, input.shape[1], input.shape[:1])
    else:
        axis = min(1, input.ndim - 1)  # of the classes
        check_target(target, input.shape[axis], input.shape[:axis] + input.shape[axis + 1 :])
        logits = input.movedim(axis, -1).reshape(-1, input.shape[axis])
        labels = target.reshape(-1)
    logits = logits.contiguous()
    loss: Tensor
    loss, *_ = cross_entropy_rows(
        logits,
        labels.contiguous(),
        class_weights(weight, logits.shape[1], sum_dtype(logits)),
        ignore_index,
        label_smoothing,
        reduction,
        loss_dtype(logits),
        inplace and may_overwrite(logits),
    )
    return loss.view(target.shape) if reduction == "none" else loss


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss for class indices; `inplace` as in `cross_entropy`."""

    def __init__(self, *args: Any, inplace: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inplace = inplace

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            inplace=self.inplace,
        )


def check_options(reduction: str, label_smoothing: float) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be from 0 to 1, got {label_smoothing}")


def check_target(target: Tensor, classes: int, shape: torch.Size) -> None:
    """Checks the arguments. shape: of the target."""
    if target.is_floating_point():
        raise NotImplementedError(
            "class probabilities as target: use torch.nn.functional.cross_entropy"
        )
    if target.dtype != torch.int64:
        raise ValueError(f"target must be int64, got {target.dtype}: target.long()")
    if target.shape != shape:
        raise ValueError(f"target must be {list(shape)} as the input, got {list(target.shape)}")
    if classes == 0:
        raise ValueError("there must be at least one class")


def class_weights(weight: Tensor | None, classes: int, dtype: torch.dtype) -> Tensor | None:
    """The class weights, [C], in the type of sums, or None."""
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"weight must be [{classes}], got {list(weight.shape)}")
    return None if weight is None else weight.to(dtype).contiguous()


def loss_dtype(logits: Tensor) -> torch.dtype:
    """That of torch's loss."""
    autocast = torch.is_autocast_enabled(logits.device.type)
    return sum_dtype(logits) if autocast else logits.dtype


def may_overwrite(logits: Tensor) -> bool:
    """Whether the logits are an intermediate result, not a parameter or an input."""
    base = logits if logits._base is None else logits._base
    return not (base.is_leaf or torch.compiler.is_compiling())


@operator("decoding::cross_entropy", results=1)
def cross_entropy_rows(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    inplace: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """logits: [N, C]; labels: int64 [N]; weight: [C]. inplace: see `cross_entropy`.

    Returns the loss, of `dtype`, [] or [N]; for the gradient, in the type of sums, each row's
    softmax in two numbers, [N, 2], and the divisor of the loss, [1].
    """
    losses, softmax = softmax_losses(logits, labels, weight, ignore_index, label_smoothing)
    loss, count = reduced(losses, labels, weight, ignore_index, reduction)
    return loss if loss.dtype == dtype else loss.to(dtype), softmax, count


@cross_entropy_rows.register_fake
def _(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    inplace: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    softmax = logits.new_empty(len(logits), 2, dtype=sum_dtype(logits))
    loss = logits.new_empty(len(logits) if reduction == "none" else (), dtype=dtype)
    return loss, softmax, softmax.new_empty(1)


def softmax_losses(
    logits: Tensor, labels: Tensor, weight: Tensor | None, ignored: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss, [N], and softmax, [N, 2], of each row in the type of sums."""
    losses = new_numbers(logits, len(logits), sum_dtype(logits))
    softmax = losses.new_empty(len(logits), 2)
    training.cross_entropy(
        logits, labels, losses, softmax, weight, sum_of(weight), ignored, smoothing
    )
    return losses, softmax


def reduced(
    losses: Tensor, labels: Tensor, weight: Tensor | None, ignored: int, reduction: str
) -> tuple[Tensor, Tensor]:
    """The loss, [] or [N], and its divisor, [1]."""
    if reduction == "none":
        return losses, losses.new_ones(1)
    total, count = losses.new_empty(()), losses.new_empty(1)
    mean = reduction == "mean"
    training.total_loss(losses, labels, total, count, mean, weight, ignored)
    return total, count if mean else torch.ones_like(count)


def sum_of(weight: Tensor | None) -> Tensor | None:
    """[1]"""
    return None if weight is None else weight.sum(0, keepdim=True)


def write_gradient(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    softmax: Tensor,
    dloss: Tensor,
    count: Tensor,
    ignored: int,
    smoothing: float,
    dlogits: Tensor,
) -> None:
    """dlogits: [N, C], may be the logits. dloss: [] or [N], divided by count, [1]."""
    upstream = dloss.to(softmax.dtype).contiguous()
    weights = (weight, sum_of(weight), ignored, smoothing)
    training.cross_entropy_backward(logits, labels, softmax, upstream, dlogits, count, *weights)


@operator("decoding::cross_entropy_gradient")
def cross_entropy_gradient(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    softmax: Tensor,
    dloss: Tensor,
    count: Tensor,
    ignored: int,
    smoothing: float,
) -> Tensor:
    """The gradient of the logits, [N, C]; see `write_gradient`."""
    dlogits = torch.empty_like(logits)
    write_gradient(logits, labels, weight, softmax, dloss, count, ignored, smoothing, dlogits)
    return dlogits


@cross_entropy_gradient.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits)


@operator("decoding::cross_entropy_gradient_", mutates="logits")
def cross_entropy_gradient_(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    softmax: Tensor,
    dloss: Tensor,
    count: Tensor,
    ignored: int,
    smoothing: float,
) -> None:
    """The gradient, written over the logits."""
    write_gradient(logits, labels, weight, softmax, dloss, count, ignored, smoothing, logits)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, labels, weight, *ctx.options, _, _, ctx.inplace = inputs
    ctx.save_for_backward(logits, labels, weight, *output[1:])


def backward(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    logits, labels, weight, softmax, count = ctx.saved_tensors
    given = (logits, labels, weight, softmax, dloss, count, *ctx.options)
    if ctx.inplace:
        cross_entropy_gradient_(*given)
        return logits.detach(), *[None] * 7
    return cross_entropy_gradient(*given), *[None] * 7


cross_entropy_rows.register_autograd(backward, setup_context=keep)
