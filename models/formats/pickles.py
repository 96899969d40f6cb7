"""torch.load for files that hold more than tensors, without running what they name.

Checkpoints of fairseq and OpenNMT-py hold their options and vocabularies as Python objects: of
argparse, of torchtext, of the toolkit itself. Here every class but those of tensors becomes a
StandIn, which only keeps the attributes that were stored; no code of the file's choice is called.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any, BinaryIO

import torch

from decoding.models.weights.memory import torch_maps

HARMLESS = {
    ("builtins", "set"): set,
    ("collections", "Counter"): Counter,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
}


class StandIn:
    """An object of any class: its attributes are those that were stored."""

    def __init__(self, *args: object, **named: object) -> None:
        pass

    def __call__(self, *args: object, **named: object) -> StandIn:
        return StandIn()

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class Unpickler(pickle.Unpickler):
    """torch.load derives its own from this one, and adds the storages of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return HARMLESS.get((module, name), StandIn)


def load(file: BinaryIO, **options: Any) -> Any:
    """What torch.load calls for the parts of files that are older than torch 1.6."""
    return Unpickler(file, **options).load()


def read(path: Path) -> dict[str, Any]:
    """Raises ValueError where the file cannot be read or is no dictionary."""
    try:
        content = torch.load(
            path,
            map_location="cpu",
            pickle_module=sys.modules[__name__],
            weights_only=False,
            mmap=torch_maps(path),
        )
    except (pickle.UnpicklingError, AttributeError, EOFError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a dictionary, got {type(content).__name__}")
    return content
