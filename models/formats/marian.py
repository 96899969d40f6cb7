"""Marian's own files: model.npz with its options inside, and decoder.yml beside it.

decoder.yml names the model and its vocabularies, and how to search.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from decoding.models.files import (
    YAML_OPTIONS,
    Directory,
    ModelFileError,
    decoded,
    read_text,
    short,
)
from decoding.models.formats import npz
from decoding.models.formats.foreign import Foreign
from decoding.models.weights.dtypes import DTYPES
from decoding.models.weights.lazy import LazyTensor, unread

OPTIONS = "special:model.yml"
EOS, UNK = 0, 1  # in every vocabulary


def read_decoder(path: Path, directory: Directory) -> Foreign:
    settings = options_of(read_text(path, YAML_OPTIONS), str(path))
    models = settings.get("models")
    if not isinstance(models, list) or len(models) != 1:
        raise ModelFileError(f"{path} must name one model, got models={short(models)}")
    for name, default in (("word-penalty", 0), ("skip-cost", False), ("shortlist", [])):
        if settings.get(name) not in (None, default):
            raise ModelFileError(
                f"{path}: {name}={short(settings[name])} is not supported, only {default}"
            )
    model = directory.required_named(models[0], "models", f"{path.name} names it")
    return read(model, directory, settings)


def read(path: Path, directory: Directory, settings: dict[str, Any] | None = None) -> Foreign:
    """settings: those of decoder.yml; Marian's defaults where there is none."""
    settings = settings or {}
    arrays = npz.read_headers(path)
    if OPTIONS not in arrays:
        raise ModelFileError(f"{path} is no Marian model: it lacks {OPTIONS}")
    options = arrays.pop(OPTIONS)
    where = f"{OPTIONS} of {path}"
    if options.dtype != np.int8 or options.nbytes > YAML_OPTIONS.bytes:
        raise ModelFileError(f"{where} must be text, got {options.dtype} {list(options.shape)}")
    text = npz.read_array(path, OPTIONS).tobytes().rstrip(b"\0")
    config = options_of(decoded(text, where), where)
    config["model_type"] = "marian_npz"
    config["vocabs"] = settings.get("vocabs") or config.get("vocabs")
    state = {name: unread_array(path, name, header) for name, header in arrays.items()}
    generation = generation_config(path, settings, state)
    return Foreign("MarianNpz", config, generation, state, directory)


def unread_array(path: Path, name: str, header: npz.Header) -> LazyTensor:
    dtype = header.dtype
    if DTYPES.get(dtype.name) != dtype:
        raise ModelFileError(f"{path}: {name} holds {dtype}, no plain numbers")
    return unread(name, header.shape, dtype.name, lambda: npz.read_array(path, name))


def options_of(text: str, where: str) -> dict[str, Any]:
    from decoding.models.files.yaml import parse_yaml  # few models have YAML

    content = parse_yaml(text, where)
    if not isinstance(content, dict):
        raise ModelFileError(f"{where} must hold options, got {type(content).__name__}")
    return content


def generation_config(
    path: Path, settings: dict[str, Any], state: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Marian's decoder starts with no token: the importer makes one, behind the vocabulary."""
    table = state.get("decoder_Wemb", state.get("Wemb"))
    start = None if table is None or not table.shape else table.shape[0]
    length_penalty, beams = settings.get("normalize", 0), settings.get("beam-size", 12)
    for name, value in (("normalize", length_penalty), ("beam-size", beams)):
        if not isinstance(value, (int, float)):
            raise ModelFileError(f"{path}: {name} must be a number, got {short(value)}")
    return {
        "bad_words_ids": None if settings.get("allow-unk") else [[UNK]],
        "decoder_start_token_id": start,
        "eos_token_id": EOS,
        "length_penalty": float(length_penalty),
        "num_beams": beams,
        "pad_token_id": start,
    }
