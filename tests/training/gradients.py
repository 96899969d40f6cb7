"""Results and gradients of training's operators beside torch's, under the one tolerance rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.conftest import assert_within_torch, random

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def results(op: Callable[..., Any], *inputs: Any) -> list[Tensor]:
    """Those of op, and the gradients of all floating point inputs for random upstream ones."""
    given = [
        x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
        for x in inputs
    ]
    found = op(*given)
    outputs = list(found) if isinstance(found, tuple) else [found]
    leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    upstream = [  # numbers that every type has
        random(*y.shape, 1, seed=seed)[..., 0].bfloat16().to(y) for seed, y in enumerate(outputs)
    ]
    gradients = torch.autograd.grad(outputs, leaves, upstream)
    return [*(y.detach() for y in outputs), *gradients]


def assert_gradients_within_torch(
    ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: Any
) -> None:
    """Every result and gradient of ours is at most twice as wrong as torch's, plus one rounding."""
    for i, found in enumerate(results(ours, *inputs)):

        def one(*given: Any, i: int = i) -> Tensor:
            return results(theirs, *given)[i]

        one.__name__ = f"{getattr(theirs, '__name__', 'result')}[{i}]"
        assert_within_torch(one, found, *inputs)
