"""Model families: their plain-torch forward, and how checkpoints become it.

A leaf of the project: it imports torch and nothing else of ours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

if __name__ == "models":
    raise ImportError("this is the package decoding.models: write `import decoding.models`")

from decoding.models.spec import ModelSpec

__all__ = ["Loaded", "ModelSpec", "load"]


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, read, checked and renamed; not yet packed for the engine (`weights.pack`)."""

    architecture: str  # as in config.json: "MarianMTModel", "GPT2LMHeadModel"
    spec: ModelSpec
    state: dict[str, Tensor]  # canonical names, float32, contiguous, on the CPU
    config: dict[str, Any]  # config.json
    generation_config: dict[str, Any]  # generation_config.json, or {} where there is none
    directory: Path | None  # None for a model that was in memory


def load(source: str | os.PathLike[str] | object) -> Loaded:
    """Reads a Hugging Face directory, or takes an in-memory transformers model.

    Of a model in memory only `.config.to_dict()`, `.generation_config.to_dict()` and
    `.state_dict()` are used. Its weights are copied.

    Raises FileNotFoundError when a file of the directory is missing, ValueError when the
    architecture, an option of the configuration or a tensor is not what we implement; the message
    names it.
    """
    raise NotImplementedError
