"""Model families: their plain-torch forward, and how checkpoints become it.

A leaf of the project: it imports nothing else of ours, and torch only for tensors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ == "models":
    raise ImportError("this is the package decoding.models: write `import decoding.models`")

if TYPE_CHECKING:
    from decoding.models.registry import Loaded, load
    from decoding.models.spec import ModelSpec

__all__ = ["Loaded", "ModelSpec", "load"]

_MODULES = {"Loaded": "registry", "ModelSpec": "spec", "load": "registry"}


def __getattr__(name: str) -> Any:
    """Imports the names of __all__ on first use: readers of files have no need of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"decoding.models.{_MODULES[name]}"), name)
