"""Marian's own files: model.npz with its options inside, and decoder.yml beside it.

decoder.yml names the model and its vocabularies, and how to search.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
import yaml
from numpy.lib.npyio import NpzFile
from torch import Tensor

from decoding.models.formats.foreign import Foreign, beside
from decoding.models.weights.lazy import LazyTensor, unread

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
            state = unread_arrays(path, file)
            options = file[OPTIONS].tobytes() if OPTIONS in file else None
    except (BadZipFile, EOFError, ValueError) as error:
        raise damaged(path, error) from error
    if options is None:
        raise ValueError(f"{path} is no Marian model: it lacks {OPTIONS}")
    text = options.rstrip(b"\0").decode()
    config = parse(text, f"{OPTIONS} of {path}")
    config["model_type"] = "marian_npz"
    config["vocabs"] = settings.get("vocabs") or config.get("vocabs")
    generation = generation_config(settings, state)
    return Foreign("MarianNpz", config, generation, state, path.parent)


def unread_arrays(path: Path, file: NpzFile) -> dict[str, LazyTensor]:
    """All arrays but the options; only their headers are read now."""
    state = {}
    assert file.zip is not None
    for name in file.files:
        if name != OPTIONS:
            with file.zip.open(f"{name}.npy") as array:
                np.lib.format.read_magic(array)  # 1.0, as of all arrays of plain numbers
                shape, _, dtype = np.lib.format.read_array_header_1_0(array)
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            state[name] = unread(name, shape, kind, partial(read_array, path, name))
    return state


def read_array(path: Path, name: str) -> Tensor:
    try:
        with np.load(path, allow_pickle=False) as file:
            return torch.from_numpy(file[name])
    except (BadZipFile, EOFError, ValueError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be read as a Marian model: {error}")


def parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{where} must hold options, got {type(content).__name__}")
    return content


def generation_config(settings: dict[str, Any], state: Mapping[str, LazyTensor]) -> dict[str, Any]:
    """Marian's decoder starts with no token: the importer makes one, behind the vocabulary."""
    table = state.get("decoder_Wemb", state.get("Wemb"))
    start = None if table is None else table.shape[0]
    return {
        "bad_words_ids": None if settings.get("allow-unk") else [[UNK]],
        "decoder_start_token_id": start,
        "eos_token_id": EOS,
        "length_penalty": float(settings.get("normalize", 0)),
        "num_beams": settings.get("beam-size", 12),
        "pad_token_id": start,
    }
