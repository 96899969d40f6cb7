"""Writes a converted model's directory: packed weights, configuration, tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoding.models.weights import converted
from decoding.models.weights.checkpoint import holds_weights
from decoding.text.tokenizers.files import files_of


def save(
    directory: Path,
    weights: converted.ConvertedWeights,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    origin: Path | None,
) -> None:
    """Writes the directory. origin: the directory whose tokenizer is copied. Raises ValueError
    where `directory` holds a checkpoint, which the new files would hide."""
    if holds_weights(directory):
        raise ValueError(f"{directory} holds a checkpoint: name another directory to write to")
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    if generation_config is not config:  # else there was none
        write_json(directory / "generation_config.json", generation_config)
    if origin is not None and origin.resolve() != directory.resolve():
        for path in files_of(origin, config):
            copy = directory / (
                path.relative_to(origin) if path.is_relative_to(origin) else path.name
            )
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    converted.save(weights, directory)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
