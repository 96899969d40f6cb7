"""Loads a model: reads a checkpoint, chooses a device and types, binds the engine."""

from __future__ import annotations

import os
from typing import Any

import torch

from decoding.engine.devices import (
    choose_device,
    choose_dtype,
    choose_kv_cache_dtype,
    choose_packed,
)
from decoding.engine.limits import Limits
from decoding.model import Model
from decoding.models import load as load_checkpoint
from decoding.models.weights.memory import trim


def load(
    source: str | os.PathLike[str] | object,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    limits: Limits | None = None,
    threads: int | None = None,
    kv_cache_dtype: str | torch.dtype = "auto",
    trust_paths: bool = False,
) -> Model:
    """Loads a model from a directory, or takes a transformers model that is in memory.

    source: a Hugging Face directory, a converted one (Model.save), a checkpoint of fairseq, Marian,
        OpenNMT-py or llama2.c or the directory that holds it, or a transformers model.
    device: "cpu", "cuda", "cuda:N" or a torch.device. "auto" is CUDA where torch sees a GPU and the
        engine was built for it.
    dtype: type of the weights: "float32", "bfloat16", on a GPU "float16", on the CPU "int8", which
        quantises activations, too. "auto" is that of a converted model; on a GPU the type in which
        the checkpoint is stored; on the CPU bfloat16 for a checkpoint in half precision if the
        machine has AVX512_BF16, else float32.
    limits: the sizes for which the memory is planned, once. None: it grows with the calls.
    threads: CPU threads that compute each step. None: as many as torch uses.
    kv_cache_dtype: of keys and values. "auto" is float32 on the CPU, where "bfloat16" halves their
        memory with a small loss of precision; on a GPU it is the model's type, and the only one.
    trust_paths: read files outside of the model's directory too, where its configuration names them
        or links lead there. Pass it for directories of your own alone.

    Raises FileNotFoundError where a file is missing, ModelFileError, which is a ValueError, where
    the checkpoint is damaged or not what we can read; the message names the file. ValueError
    and NotImplementedError for devices and types that this build has no engine for, decoding.Error
    when there is no GPU, or when weights or `limits` need more memory than there is.
    """
    place = choose_device(device)
    loaded = load_checkpoint(source, trust_paths=trust_paths)
    if loaded.packed:
        place, chosen = choose_packed(device, dtype, loaded.stored)
    else:
        chosen = choose_dtype(dtype, place, loaded.stored)
    model = Model(
        loaded,
        device=place,
        dtype=chosen,
        limits=limits,
        threads=threads,
        kv_cache_dtype=choose_kv_cache_dtype(kv_cache_dtype, place, chosen),
    )
    del loaded  # the checkpoint's tensors, which trim() is to give back
    trim()
    return model


def generate(
    model: Model | str | os.PathLike[str] | object, input_ids: Any = None, **options: Any
) -> Any:
    """Model.generate in one call; `model` may also be anything that load() takes."""
    return (model if isinstance(model, Model) else load(model)).generate(input_ids, **options)
