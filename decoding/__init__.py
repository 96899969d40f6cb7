"""Fast sequence generation with the answers of Hugging Face's generate()."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from decoding.common.version import VERSION

if TYPE_CHECKING:
    from decoding._C import Error
    from decoding.acceleration import accelerate, restore
    from decoding.common.progress import Cancelled
    from decoding.engine.limits import Limits
    from decoding.generation.config import GenerationConfig
    from decoding.generation.option_types import GenerateOptions
    from decoding.loading import generate, load
    from decoding.model import Model
    from decoding.models.files import ModelFileError
    from decoding.serving.engine import Engine
    from decoding.serving.request import Request
    from decoding.text.shortlist import Shortlist

__all__ = [
    "Cancelled",
    "Engine",
    "Error",
    "GenerateOptions",
    "GenerationConfig",
    "Limits",
    "Model",
    "ModelFileError",
    "Request",
    "Shortlist",
    "accelerate",
    "generate",
    "load",
    "restore",
]
__version__ = VERSION

# The modules of the names above. They, and the engine with them, are imported on first use: torch
# alone takes more than a second, which `decoding --help` should not.
_MODULES = {
    "Cancelled": "decoding.common.progress",
    "Engine": "decoding.serving.engine",
    "Error": "decoding._C",
    "GenerateOptions": "decoding.generation.option_types",
    "GenerationConfig": "decoding.generation.config",
    "Limits": "decoding.engine.limits",
    "Model": "decoding.model",
    "ModelFileError": "decoding.models.files",
    "Request": "decoding.serving.request",
    "Shortlist": "decoding.text.shortlist",
    "accelerate": "decoding.acceleration",
    "generate": "decoding.loading",
    "load": "decoding.loading",
    "restore": "decoding.acceleration",
}


def __getattr__(name: str) -> Any:
    """Imports the names of __all__, and modules of the package, on first use."""
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    if name == "VocabularyMap":
        warnings.warn(
            "decoding.VocabularyMap is deprecated and goes with the next version: use Shortlist",
            DeprecationWarning,
            stacklevel=2,
        )
        return import_module(_MODULES["Shortlist"]).Shortlist
    if not name.startswith("__") and find_spec(f"decoding.{name}"):
        return import_module(f"decoding.{name}")
    raise AttributeError(f"module 'decoding' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
