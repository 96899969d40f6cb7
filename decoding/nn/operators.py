"""Registers functions as torch operators, and chooses the types that they compute in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable


class Operator:
    """A torch custom operator. In plain eager mode the call bypasses torch's dispatcher, which
    for such an operator takes longer on the host than many a kernel on a GPU.

    Of several outputs the first `results` are what callers want. Only gradients need the others:
    autograd does not follow them there, and they may be missing from what a call returns.
    """

    def __init__(self, name: str, function: Callable[..., Any], mutates: str, results: int) -> None:
        self.function = function
        self.registered = torch.library.custom_op(
            name, function, mutates_args={mutates} if mutates else ()
        )
        self.mutated = [*inspect.signature(function).parameters].index(mutates) if mutates else None
        self.results = results
        self.direct: Any = None  # the function with its gradient

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.registered.register_fake(function)
        return function

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None]
    ) -> None:
        self.registered.register_autograd(backward, setup_context=setup_context)
        function, results = self.function, self.results
        backward_once = once_differentiable(backward)

        class Direct(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                output = function(*inputs)
                setup_context(ctx, inputs, output)
                return output[:results] if results else output

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                if torch.is_grad_enabled():  # somebody may ask for a second derivative
                    return backward_once(ctx, *gradients)
                return backward(ctx, *gradients)

        # Function.apply without what it does for torch.func, which is_watched() keeps away.
        self.direct = super(torch.autograd.Function, Direct).apply

    def __call__(self, *inputs: Any) -> Any:
        if is_watched(inputs):
            refuse_tangents(inputs)
            return self.registered(*inputs)
        if self.direct is not None and needs_gradient(inputs):
            return self.direct(*inputs)
        output = self.function(*inputs)
        if self.mutated is not None:
            torch.autograd.graph.increment_version(inputs[self.mutated])
        return output


def operator(
    name: str, *, mutates: str = "", results: int = 0
) -> Callable[[Callable[..., Any]], Operator]:
    """Makes a function of tensors a torch operator. mutates: the one tensor that it writes to;
    results: of the outputs, where they are a tuple."""
    return lambda function: Operator(name, function, mutates, results)


TENSORS = {Tensor, nn.Parameter}
PLAIN = TENSORS | {type(None), bool, int, float, str, list, torch.dtype, torch.Size}


def is_watched(inputs: tuple[Any, ...]) -> bool:
    """Whether a compiler, a mode, a transform or a subclass of tensors must see the operator."""
    return is_traced() or not PLAIN.issuperset(map(type, inputs))


def is_traced() -> bool:
    """Whether a compiler, a mode or a transform must see every operator."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None  # torch.jit.trace
        or forward_ad._current_level >= 0
    )


def refuse_tangents(inputs: tuple[Any, ...]) -> None:
    """Raises NotImplementedError for derivatives in forward mode, which an operator would drop."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    unpack_dual: Any = forward_ad.unpack_dual
    for x in inputs:
        if isinstance(x, Tensor) and unpack_dual(x).tangent is not None:
            raise NotImplementedError(
                "decoding.nn has no derivatives in forward mode (jvp, jacfwd): use torch's own "
                "operators there"
            )


def needs_gradient(inputs: tuple[Any, ...]) -> bool:
    """Of inputs that are not watched."""
    if not torch.is_grad_enabled():
        return False
    for x in inputs:
        if type(x) in TENSORS and x.requires_grad:
            return True
    return False


def sum_dtype(x: Tensor) -> torch.dtype:
    """The type of sums over x."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def new_numbers(like: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """[count], not initialised. To say no type takes the host half as long."""
    return like.new_empty(count) if like.dtype == dtype else like.new_empty(count, dtype=dtype)


def autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in the type to which torch.autocast casts a product's."""
    device = next(x.device.type for x in tensors if x is not None)
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def weights_beside(
    x: Tensor, shape: tuple[int, ...], **weights: Tensor | None
) -> list[Tensor | None]:
    """Weights of that shape in one dimension, and in one type: x's, or float32 where x has half
    precision and one of them is float32."""
    found = [*weights.values()]
    dtype, ready = x.dtype, len(shape) == 1
    types = set()
    for weight in found:
        if weight is not None:
            types.add(weight.dtype)
            ready = ready and weight.shape == shape and weight.is_contiguous()
    if dtype.itemsize == 2 and torch.float32 in types:
        dtype = torch.float32
    if ready and types <= {dtype}:  # as they mostly are; the rest takes longer
        return found
    for name, weight in weights.items():
        if weight is not None and weight.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {list(weight.shape)}")
    return [
        None if weight is None else weight.to(dtype).reshape(-1).contiguous() for weight in found
    ]
