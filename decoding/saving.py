"""Writes a converted model's directory: packed weights, configuration, tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoding.models.files import Directory, open_file
from decoding.models.files.writing import replacing_directory
from decoding.models.weights import converted
from decoding.models.weights.checkpoint import holds_weights
from decoding.text.tokenizers.files import files_of


def save(
    directory: Path,
    weights: converted.ConvertedWeights,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    origin: Directory | None,
) -> None:
    """Writes the directory, which has the new files once all of them are complete. origin: the
    directory whose tokenizer is copied. Raises ValueError where `directory` holds a checkpoint,
    which the new files would hide."""
    if holds_weights(directory):
        raise ValueError(f"{directory} holds a checkpoint: name another directory to write to")
    with replacing_directory(directory, last=converted.INDEX) as unfinished:
        write_json(unfinished / "config.json", config)
        write_json(unfinished / "generation_config.json", generation_config)
        if origin is not None and origin.path.resolve() != directory.resolve():
            for name, path in files_of(origin, config).items():
                copy(path, unfinished / name)
        converted.save(weights, unfinished)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_file(source) as given, target.open("wb") as made:
        shutil.copyfileobj(given, made)
