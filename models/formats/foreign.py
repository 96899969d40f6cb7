"""What a reader makes of a checkpoint, and the files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from decoding.models.weights.lazy import Weight


class Foreign(NamedTuple):
    """A checkpoint as its toolkit has stored it; the arguments of `models.convert`."""

    architecture: str
    config: dict[str, Any]  # the toolkit's own options, and our "model_type"
    generation_config: dict[str, Any]  # in Hugging Face's words: what the toolkit does by default
    state: Mapping[str, Weight]
    directory: Path


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are plain data, as JSON has them; objects of a toolkit are left out."""
    return {name: value for name, value in options.items() if is_plain(value)}


def is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def beside(directory: Path, name: str) -> Path:
    """Where the file `name` of a checkpoint in `directory` is.

    Toolkits store the paths of the machine that trained: where there is no such file, one of that
    name is taken to lie in the directory.
    """
    path = directory / name
    return path if path.is_file() else directory / Path(name).name
