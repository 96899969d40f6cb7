"""What a reader makes of a checkpoint, and the files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from decoding.models.files import CONFIGURATION, Directory, ModelFileError, short
from decoding.models.weights.lazy import Weight


class Foreign(NamedTuple):
    """A checkpoint as its toolkit has stored it; the arguments of `models.convert`."""

    architecture: str
    config: dict[str, Any]  # the toolkit's own options, and our "model_type"
    generation_config: dict[str, Any]  # in Hugging Face's words: what the toolkit does by default
    state: Mapping[str, Weight]
    directory: Directory


class StandIn:
    """An object of any class: its attributes are those that were stored."""

    def __init__(self, *args: object, **named: object) -> None:
        pass

    def __call__(self, *args: object, **named: object) -> StandIn:
        return StandIn()


DEEPEST = 16  # lists and tables inside each other, in options
OBJECT = float("inf")  # the size of what is no plain data


def plain(path: Path, options: object) -> dict[str, Any]:
    """The options that are plain data, as JSON has them; objects of a toolkit are left out.

    path: their file. Raises ModelFileError where they are no dictionary of names, or larger than a
    configuration's file may be: objects that are shared count each time.
    """
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ModelFileError(f"{path}: its options must have names, got {short(options)}")
    sizes: dict[int, float] = {}
    try:
        found = {
            name: len(name.encode()) + size_of(value, sizes, DEEPEST)
            for name, value in options.items()
        }
    except UnicodeEncodeError as error:
        raise ModelFileError(f"{path}: its options hold no proper text: {short(error)}") from error
    kept = {name: size for name, size in found.items() if size < OBJECT}
    if sum(kept.values()) > CONFIGURATION.bytes:
        largest = max(kept, key=kept.__getitem__)
        raise ModelFileError(f"{path}: the option {largest} is too large")
    return {name: options[name] for name in kept}


def size_of(value: object, sizes: dict[int, float], depth: int) -> float:
    """Bytes of a value in JSON, about. sizes: of lists and tables by their ids, each looked through
    once."""
    if isinstance(value, str):
        return len(value.encode()) + 2
    if value is None or isinstance(value, (bool, float)):
        return 8
    if isinstance(value, int):
        return 20 if value.bit_length() < 64 else OBJECT
    if not isinstance(value, (dict, list, tuple)) or depth == 0:
        return OBJECT
    if id(value) not in sizes:
        sizes[id(value)] = OBJECT  # of one that holds itself
        inner = list(value.values()) if isinstance(value, dict) else value
        keys = list(value) if isinstance(value, dict) else []
        if not all(isinstance(key, str) for key in keys):
            return OBJECT
        sizes[id(value)] = 2 + sum(size_of(each, sizes, depth - 1) for each in (*keys, *inner))
    return sizes[id(value)]


def attributes(path: Path, name: str, value: object) -> dict[str, Any]:
    """A table of options: a dictionary, or what a toolkit's object holds; empty for None."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, StandIn):
        raise ModelFileError(f"{path}: {name} must hold options, got {short(value)}")
    return dict(vars(value))
