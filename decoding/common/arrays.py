"""Arrays of NumPy's and tensors of torch's, which is imported only where somebody uses it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

Array = npt.NDArray[Any]  # a docstring or a comment has its type and shape


def loaded_torch() -> Any:
    """torch where this process has imported it, else None. None too while a thread imports it."""
    torch = sys.modules.get("torch")
    spec = getattr(torch, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else torch


def is_tensor(value: object) -> TypeIs[Tensor]:
    """Whether a value is a tensor. Torch is not imported for that: who has one has done so."""
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.Tensor)
