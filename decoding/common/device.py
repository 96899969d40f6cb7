"""A device, as torch names it, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decoding.common.arrays import loaded_torch


@dataclass(frozen=True)
class Device:
    """str() is what torch.device() takes. index: of a GPU."""

    type: str  # "cpu" or "cuda"
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")


def torch_cuda() -> Any:
    """torch.cuda where this process uses it, else None: it is not imported for a question."""
    torch = loaded_torch()
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
