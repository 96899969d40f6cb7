"""Loads a model: reads a checkpoint, chooses a device and types, binds the engine."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from decoding.common import environment
from decoding.common.device import Device
from decoding.engine.devices import (
    choose_device,
    choose_dtype,
    choose_kv_cache_dtype,
    choose_packed,
    quantizes_activations,
)
from decoding.engine.limits import Limits
from decoding.generation.checks import flag
from decoding.generation.option_names import naming_arguments
from decoding.generation.option_types import FunctionOptions
from decoding.generation.outputs import GenerateOutput
from decoding.model import Model
from decoding.models import Loaded
from decoding.models import load as load_checkpoint
from decoding.models.weights.memory import trim
from decoding.sources import find_source
from decoding.tensor_parallel import group_of, own_gpu, own_threads, shard_of, together

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from typing_extensions import Unpack

    from decoding.engine.ranks import Group

logger = logging.getLogger("decoding")
Source = str | os.PathLike[str] | object


# transformers, vLLM; CTranslate2.
LOAD_NAMES = {
    "compute_type": "dtype",
    "cpu_threads": "threads",
    "device_map": "device",
    "inter_threads": "threads",
    "intra_threads": "threads",
    "model": "source",
    "model_path": "source",
    "num_threads": "threads",
    "pretrained_model_name_or_path": "source",
    "quantization": "dtype",
    "tensor_parallel_size": "tensor_parallel",
    "torch_dtype": "dtype",
}


@naming_arguments(LOAD_NAMES)
def load(
    source: str | os.PathLike[str] | object,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    limits: Limits | None = None,
    threads: int | None = None,
    kv_cache_dtype: str | torch.dtype = "auto",
    *,
    activation_dtype: str | torch.dtype = "auto",
    deterministic: bool = False,
    detect_overflow: bool = False,
    tensor_parallel: int = 1,
    tokenizer: Any = None,
    download: bool = False,
    trust_paths: bool = False,
) -> Model:
    """Loads a model from a directory, by its name on the Hugging Face hub, or from memory.

        model = decoding.load("demo")
        model = decoding.load("Helsinki-NLP/opus-mt-de-en", dtype="int8", threads=4)
        model = decoding.load(hf_model, tokenizer=hf_tokenizer)

    Args:
        source: a Hugging Face directory, a converted one (Model.save), a checkpoint of fairseq,
            Marian, OpenNMT-py or llama2.c or the directory that holds it; the name of a model on
            the hub, which is looked for in its local cache; "demo"; or a transformers model.
        device: "cpu", "cuda", "cuda:N" or a torch.device. "auto" is CUDA where there is a GPU and
            the engine was built for it.
        dtype: type of the weights: "float32", "bfloat16", "int8", on a GPU "float16". On the CPU
            int8 quantises activations, too; on a GPU they stay in 16 bits (see kv_cache_dtype)
            unless activation_dtype says otherwise, and weights that a checkpoint stores in fp8
            (e4m3) with a scale for each output are kept.
            "auto" is that of a converted model; on a GPU the type in which the checkpoint is
            stored, or that its configuration names where it is quantised; on the CPU bfloat16 for
            a checkpoint in half precision if the machine has AVX512_BF16, else float32.
        limits: the sizes for which the memory is planned, once. None: it grows with the calls.
        threads: CPU threads that compute each step. None: as many as torch uses; with
            tensor_parallel each rank has its part of them.
        kv_cache_dtype: of keys and values. "auto" is float32 on the CPU, where "bfloat16" halves
            their memory with a small loss of precision; on a GPU it is the model's type. Beside
            int8 on a GPU it is the type of all numbers but the int8 weights: "float16" or
            "bfloat16", by default that of the checkpoint where that is bfloat16, else float16.
            "fp8" (e4m3) halves the memory on a GPU of compute capability 8.9 or higher, beside
            weights in float16, bfloat16 or int8, with a loss of precision.
        activation_dtype: "int8" on a GPU of compute capability 9.0, beside dtype="int8": encoders
            and prompts of 512 tokens and more multiply numbers in int8 by the weights where a norm
            or an activation has left them, which is faster and less exact (see "Quantise a model"
            in the documentation). Not with deterministic, detect_overflow or tensor_parallel.
        deterministic: on a GPU, fix the kernels and the order of every sum, so that a row has the
            same bits alone and among any others, in generate() and in an Engine, in half precision
            too; it costs speed (see "Reproducible results" in the documentation). On a CPU it holds
            always, and nothing changes.
        detect_overflow: look at the numbers that each block leaves, which costs speed and changes
            no result. Where logits are not finite, the error then names the first tensor that was
            not, and Model.overflow_statistics() tells how large the numbers of each tensor were.
        tensor_parallel: processes of one machine that share out the model, each with a part of its
            weights: start the program with `torchrun --nproc-per-node N`. All make the same calls,
            and get the same results. On GPUs each has its own. For decoders, with and without an
            encoder; see "Split one model over processes" in the documentation.
        tokenizer: a tokenizer of transformers or a directory with one, for a model that brings
            none, or another one. None: that of the model's directory.
        download: fetch a model of the hub that is not in its local cache. False: in a terminal the
            user is asked.
        trust_paths: read files outside of the model's directory too, where its configuration names
            them or links lead there. Pass it for directories of your own alone.

    Where device, dtype or threads are left out, the environment variables DECODING_DEVICE,
    DECODING_DTYPE and DECODING_THREADS decide first.

    Returns the model. Raises FileNotFoundError where a file is missing, ModelFileError, which is a
    ValueError, where the checkpoint is damaged or not what we can read; the message names the file.
    TypeError where `deterministic` or `detect_overflow` is not a bool; ValueError and
    NotImplementedError for devices and types that this build has no engine for, decoding.Error when
    there is no GPU, or when weights or `limits` need more memory than there is.
    """
    environment.set_log_level()
    started = time.monotonic()
    deterministic = flag("deterministic", deterministic)
    detect_overflow = flag("detect_overflow", detect_overflow)
    group = group_of(tensor_parallel)
    with together(group):
        found = find_source(source, download=download)
        place, chosen, loaded = read(found, device, dtype, trust_paths, group)
        caches = choose_kv_cache_dtype(kv_cache_dtype, place, chosen, loaded.stored)
        excluding = {
            "deterministic=True": deterministic,
            "detect_overflow=True": detect_overflow,
            "tensor_parallel": group is not None,
        }
        int8_activations = quantizes_activations(activation_dtype, place, chosen, excluding)
    again = partial(
        load,
        device=device,
        dtype=dtype,
        limits=limits,
        threads=threads,
        kv_cache_dtype=kv_cache_dtype,
        activation_dtype=activation_dtype,
        deterministic=deterministic,
        detect_overflow=detect_overflow,
        tensor_parallel=tensor_parallel,
        tokenizer=tokenizer,
        trust_paths=trust_paths,
    )
    ranks = None
    if group is not None:
        options = {"dtype": chosen, "kv_cache_dtype": caches, "limits": limits}
        loaded, ranks = shard_of(loaded, place, group, options)
    with together(group):
        model = Model(
            loaded,
            device=place,
            dtype=chosen,
            limits=limits,
            threads=own_threads(threads, group),
            kv_cache_dtype=caches,
            int8_activations=int8_activations,
            deterministic=deterministic,
            detect_overflow=detect_overflow,
            tokenizer=tokenizer,
            load_again=partial(again, found.absolute()) if isinstance(found, Path) else None,
            ranks=ranks,
        )
    del loaded  # the checkpoint's tensors, which trim() is to give back
    trim()
    name = found if isinstance(found, Path) else "memory"
    logger.info("loaded %r from %s in %.2f s", model, name, time.monotonic() - started)
    return model


def read(
    found: object,
    device: str | torch.device,
    dtype: str | torch.dtype,
    trust_paths: bool,
    group: Group | None,
) -> tuple[Device, str, Loaded]:
    """Where a model is to run, the type of its weights, and its checkpoint. group: of ranks, each
    of which has a GPU of its own where none is named."""
    wanted = environment.given_or_set(str(device), "DECODING_DEVICE")
    kind = environment.given_or_set(str(dtype), "DECODING_DTYPE")
    if wanted != "auto":
        choose_device(wanted)  # a wrong one is refused before anything is read
    loaded = load_checkpoint(found, trust_paths=trust_paths)
    if loaded.packed:
        return *choose_packed(wanted, kind, loaded.stored), loaded
    place = choose_device(wanted)
    if group is not None and place.index is not None and ":" not in wanted:
        place = own_gpu(group)
    return place, choose_dtype(kind, place, loaded.stored), loaded


@overload
def generate(
    model: Source,
    input_ids: Any = None,
    *,
    return_dict_in_generate: Literal[True],
    generation_config: Any = None,
    **options: Unpack[FunctionOptions],
) -> GenerateOutput: ...
@overload
def generate(
    model: Source,
    input_ids: Any = None,
    *,
    return_dict_in_generate: Literal[False] | None = None,
    generation_config: None = None,
    **options: Unpack[FunctionOptions],
) -> Tensor: ...
@overload
def generate(
    model: Source,
    input_ids: Any = None,
    *,
    return_dict_in_generate: bool | None = None,
    generation_config: Any = None,
    **options: Unpack[FunctionOptions],
) -> Tensor | GenerateOutput: ...
def generate(
    model: str | os.PathLike[str] | object, input_ids: Any = None, **options: Any
) -> Tensor | GenerateOutput:
    """Model.generate() in one call.

        decoding.generate(hf_model, ids, num_beams=4, max_new_tokens=40)

    Args:
        model: a model that load() has made, or anything that load() takes: it is loaded for this
            call alone.
        input_ids: ids or texts, as Model.generate() takes them.
        options: those of Model.generate(), all by name.

    Returns what Model.generate() does. Raises what it and load() do.
    """
    loaded = model if isinstance(model, Model) else load(model)
    found: Tensor | GenerateOutput = loaded.generate(input_ids, **options)
    return found
