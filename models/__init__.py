"""Model families: their plain-torch forward, and how checkpoints become it.

A leaf of the project: it imports torch and nothing else of ours.
"""

from __future__ import annotations

if __name__ == "models":
    raise ImportError("this is the package decoding.models: write `import decoding.models`")

from decoding.models.registry import Loaded, load
from decoding.models.spec import ModelSpec

__all__ = ["Loaded", "ModelSpec", "load"]
