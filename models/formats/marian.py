"""Marian's own files: model.npz with its options inside, and decoder.yml beside it.

decoder.yml names the model and its vocabularies, and how to search.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
import yaml

from decoding.models.formats.foreign import Foreign, beside

OPTIONS = "special:model.yml"
EOS, UNK = 0, 1  # in every vocabulary


def read_decoder(path: Path) -> Foreign:
    settings = parse(path.read_text(encoding="utf-8"), str(path))
    models = settings.get("models")
    if not isinstance(models, list) or len(models) != 1:
        raise ValueError(f"{path} must name one model, got models={models!r}")
    for name, default in (("word-penalty", 0), ("skip-cost", False), ("shortlist", [])):
        if settings.get(name) not in (None, default):
            raise ValueError(f"{path}: {name}={settings[name]!r} is not supported, only {default}")
    model = beside(path.parent, models[0])
    if not model.is_file():
        raise FileNotFoundError(f"{model} is missing, but {path.name} names it")
    return read(model, settings)


def read(path: Path, settings: dict[str, Any] | None = None) -> Foreign:
    """settings: those of decoder.yml; Marian's defaults where there is none."""
    settings = settings or {}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a Marian model: {error}") from error
    if OPTIONS not in arrays:
        raise ValueError(f"{path} is no Marian model: it lacks {OPTIONS}")
    text = arrays.pop(OPTIONS).tobytes().rstrip(b"\0").decode()
    config = parse(text, f"{OPTIONS} of {path}")
    config["model_type"] = "marian_npz"
    config["vocabs"] = settings.get("vocabs") or config.get("vocabs")
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    generation = generation_config(settings, state)
    return Foreign("MarianNpz", config, generation, state, path.parent)


def parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{where} must hold options, got {type(content).__name__}")
    return content


def generation_config(settings: dict[str, Any], state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Marian's decoder starts with no token: the importer makes one, behind the vocabulary."""
    table = state.get("decoder_Wemb", state.get("Wemb"))
    start = None if table is None else len(table)
    return {
        "bad_words_ids": None if settings.get("allow-unk") else [[UNK]],
        "decoder_start_token_id": start,
        "eos_token_id": EOS,
        "length_penalty": float(settings.get("normalize", 0)),
        "num_beams": settings.get("beam-size", 12),
        "pad_token_id": start,
    }
