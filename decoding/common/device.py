"""A device, as torch names it, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """str() is what torch.device() takes. index: of a GPU."""

    type: str  # "cpu" or "cuda"
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")
