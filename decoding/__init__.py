"""Fast sequence generation with the answers of Hugging Face's generate()."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from decoding.engine.build_check import check_built

check_built(Path(__file__).parent)

from decoding._C import Error  # noqa: E402
from decoding.engine.limits import Limits  # noqa: E402
from decoding.generation.config import GenerationConfig  # noqa: E402
from decoding.loading import load  # noqa: E402
from decoding.model import Model  # noqa: E402
from decoding.text.shortlist import Shortlist  # noqa: E402

__all__ = ["Error", "GenerationConfig", "Limits", "Model", "Shortlist", "generate", "load"]
__version__ = "0.1.0"


def generate(
    model: Model | str | os.PathLike[str] | object, input_ids: Any = None, **options: Any
) -> Any:
    """Model.generate in one call; `model` may also be anything that load() takes."""
    return (model if isinstance(model, Model) else load(model)).generate(input_ids, **options)


def __getattr__(name: str) -> Any:
    """Old names, which go with the next version."""
    if name != "VocabularyMap":
        raise AttributeError(f"module 'decoding' has no attribute {name!r}")
    warnings.warn(
        "decoding.VocabularyMap is deprecated and goes with the next version: use Shortlist",
        DeprecationWarning,
        stacklevel=2,
    )
    return Shortlist
