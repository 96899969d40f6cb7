"""Registers functions as torch operators, and chooses the types that they compute in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Operator:
    """A torch custom operator. In plain eager mode the call bypasses torch's dispatcher, which
    for such an operator takes longer on the host than many a kernel on a GPU."""

    def __init__(self, name: str, function: Callable[..., Any], mutates: str) -> None:
        self.function = function
        self.registered = torch.library.custom_op(
            name, function, mutates_args={mutates} if mutates else ()
        )
        self.mutated = [*inspect.signature(function).parameters].index(mutates) if mutates else None
        self.direct: Any = None  # the function with its gradient

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.registered.register_fake(function)
        return function

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None]
    ) -> None:
        self.registered.register_autograd(backward, setup_context=setup_context)
        function = self.function

        class Direct(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                output = function(*inputs)
                setup_context(ctx, inputs, output)
                return output

        Direct.backward = staticmethod(once_differentiable(backward))  # type: ignore[assignment]
        self.direct = Direct

    def __call__(self, *inputs: Any) -> Any:
        if is_watched(inputs):
            return self.registered(*inputs)
        if self.direct is not None and needs_gradient(inputs):
            return self.direct.apply(*inputs)
        output = self.function(*inputs)
        if self.mutated is not None:
            torch.autograd.graph.increment_version(inputs[self.mutated])
        return output


def operator(name: str, mutates: str = "") -> Callable[[Callable[..., Any]], Operator]:
    """Makes a function of tensors a torch operator. mutates: the one tensor that it writes to."""
    return lambda function: Operator(name, function, mutates)


PLAIN = {Tensor, nn.Parameter, type(None), bool, int, float, str, list, torch.dtype, torch.Size}


def is_watched(inputs: tuple[Any, ...]) -> bool:
    """Whether a compiler, a mode, a transform or a subclass of tensors must see the operator."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or not PLAIN.issuperset(map(type, inputs))
    )


def needs_gradient(inputs: tuple[Any, ...]) -> bool:
    if not torch.is_grad_enabled():
        return False
    for x in inputs:
        if isinstance(x, Tensor) and x.requires_grad:
            return True
    return False


def sum_dtype(x: Tensor) -> torch.dtype:
    """The type of sums over x."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


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
    dtype, found = x.dtype, []
    for name, weight in weights.items():
        if weight is not None and weight.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {list(weight.shape)}")
        if weight is not None and dtype.itemsize == 2 and weight.dtype == torch.float32:
            dtype = torch.float32
    for weight in weights.values():
        if weight is not None:
            weight = weight.to(dtype).contiguous()
            weight = weight if len(shape) == 1 else weight.reshape(-1)
        found.append(weight)
    return found
