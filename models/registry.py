"""The families that checkpoints belong to, and loading a checkpoint by its family."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoding.models.files import Directory, ModelFileError, naming, read_object, short
from decoding.models.spec import EncoderSpec, ModelSpec

if TYPE_CHECKING:
    from decoding.models.weights.lazy import Weight

# Hugging Face's architecture and model_type, and the file in families/.
FAMILIES = (
    ("BartForConditionalGeneration", "bart", "bart"),
    ("BertForMaskedLM", "bert", "bert"),
    ("BertForPreTraining", "bert", "bert"),
    ("BertModel", "bert", "bert"),
    ("BlenderbotForConditionalGeneration", "blenderbot", "blenderbot"),
    ("BlenderbotSmallForConditionalGeneration", "blenderbot-small", "blenderbot_small"),
    ("BloomForCausalLM", "bloom", "bloom"),
    ("DistilBertForMaskedLM", "distilbert", "distilbert"),
    ("DistilBertModel", "distilbert", "distilbert"),
    ("FairseqTransformer", "fairseq", "fairseq"),
    ("Gemma2ForCausalLM", "gemma2", "gemma2"),
    ("GemmaForCausalLM", "gemma", "gemma"),
    ("GPT2LMHeadModel", "gpt2", "gpt2"),
    ("GPTJForCausalLM", "gptj", "gptj"),
    ("GPTNeoXForCausalLM", "gpt_neox", "gpt_neox"),
    ("Llama2c", "llama2c", "llama2c"),
    ("LlamaForCausalLM", "llama", "llama"),
    ("M2M100ForConditionalGeneration", "m2m_100", "m2m_100"),
    ("MarianMTModel", "marian", "marian"),
    ("MarianNpz", "marian_npz", "marian_npz"),
    ("MBartForConditionalGeneration", "mbart", "mbart"),
    ("MistralForCausalLM", "mistral", "mistral"),
    ("MT5ForConditionalGeneration", "mt5", "mt5"),
    ("OpenELMForCausalLM", "openelm", "openelm"),
    ("OpenNMTTransformer", "opennmt", "opennmt"),
    ("OPTForCausalLM", "opt", "opt"),
    ("PegasusForConditionalGeneration", "pegasus", "pegasus"),
    ("Phi3ForCausalLM", "phi3", "phi3"),
    ("PhiForCausalLM", "phi", "phi"),
    ("Qwen2ForCausalLM", "qwen2", "qwen2"),
    ("Qwen3ForCausalLM", "qwen3", "qwen3"),
    ("RobertaForMaskedLM", "roberta", "roberta"),
    ("RobertaModel", "roberta", "roberta"),
    ("T5ForConditionalGeneration", "t5", "t5"),
    ("UMT5ForConditionalGeneration", "umt5", "umt5"),
    ("XLMRobertaForMaskedLM", "xlm-roberta", "roberta"),
    ("XLMRobertaModel", "xlm-roberta", "roberta"),
)
# Classes that published files name, and what transformers reads them as to generate: BART without
# its output, which is tied, and T5 by its first name.
PUBLISHED_AS = {
    "BartModel": "BartForConditionalGeneration",
    "T5WithLMHeadModel": "T5ForConditionalGeneration",
}


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, read, checked and renamed; not yet packed for the engine (`weights.pack`).

    Or a converted model, which is: `state` is what the CPU's engine is given, in the type `stored`
    (`weights.repack` makes of that in int8 what a GPU's is given).
    """

    architecture: str  # as in config.json: "MarianMTModel", "GPT2LMHeadModel"
    spec: ModelSpec | EncoderSpec
    # Canonical names; tensors in float32 that are read when asked for, but arrays where `packed`.
    state: Mapping[str, Any]
    # The type that the checkpoint holds most of its numbers in; of a quantised one config.json's.
    stored: str
    config: dict[str, Any]  # config.json, with the family's defaults where it is silent
    # generation_config.json; without one config.json as it is, whose silence is no default
    generation_config: dict[str, Any]
    files: Directory | None  # None for a model that was in memory
    packed: bool = False
    whole_spec: ModelSpec | None = None  # of a shard (weights/shards.py): that of all of them

    @property
    def directory(self) -> Path | None:
        return None if self.files is None else self.files.path


def load(source: str | os.PathLike[str] | object, *, trust_paths: bool = False) -> Loaded:
    """Reads a checkpoint, or takes an in-memory transformers model.

    A checkpoint is a Hugging Face directory, a converted one, or a file of another toolkit or a
    directory with one: see formats/. trust_paths: as in `files.Directory`.

    Of a model in memory only `.config.to_dict()`, `.generation_config.to_dict()` and
    `.state_dict()` are used, and its weights are read where they are when the engine's are made.

    Raises FileNotFoundError when a file of the directory is missing, TypeError when `source` is
    neither, ValueError when the architecture, an option of the configuration or a tensor is not
    what we implement; the message names it. It is a ModelFileError, which names the file or the
    directory too, where the model is not one in memory.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        with naming(path):
            return load_path(path, trust_paths=trust_paths)
    if not hasattr(source, "state_dict") or not hasattr(source, "config"):
        raise TypeError(
            f"expected a model directory or a transformers model, got {type(source).__name__}"
        )
    generation_config = getattr(source, "generation_config", None)
    return convert(
        type(source).__name__,
        source.config.to_dict(),
        None if generation_config is None else generation_config.to_dict(),
        source.state_dict(),
        None,
    )


def load_path(path: Path, *, trust_paths: bool) -> Loaded:
    from decoding.models import formats

    foreign = formats.read(path, trust_paths=trust_paths)
    return load_directory(Directory(path, trust_paths)) if foreign is None else convert(*foreign)


def load_directory(directory: Directory) -> Loaded:
    from decoding.models.weights import converted
    from decoding.models.weights.checkpoint import read

    if not directory.path.is_dir():
        raise FileNotFoundError(
            f"{directory.path} is no directory: models are read from a local one, never downloaded"
        )
    needs = "is this a Hugging Face model directory?"
    config = read_object(directory.required("config.json", needs))
    generation = directory.find("generation_config.json")
    generation_config = None if generation is None else read_object(generation)
    for name, content in (("config.json", config), ("generation_config.json", generation_config)):
        check_token_ids(name, content or {})
    architecture = architecture_of(config)
    if not converted.is_packed(directory):
        return convert(architecture, config, generation_config, read(directory), directory)
    found = converted.load(directory)
    return Loaded(
        architecture=architecture,
        spec=found.spec,
        state=found.tensors,
        stored=found.dtype,
        config=config,
        generation_config=generation_options(config, generation_config),
        files=directory,
        packed=True,
    )


def check_token_ids(name: str, content: Mapping[str, Any]) -> None:
    """Raises ModelFileError where a file names tokens by what is no id: a number, some, or null."""
    for option, value in content.items():
        if option.endswith("_token_id"):
            ids = value if isinstance(value, list) else [value]
            if not all(id is None or (type(id) is int and -(2**31) <= id < 2**31) for id in ids):
                raise ModelFileError(f"{name}: {option} must be a token's id, got {short(value)}")


def architecture_of(config: Mapping[str, Any]) -> str:
    """The first of "architectures". Where there are none, or it is of another family than
    "model_type", what that stands for: transformers' Auto classes go by it."""
    architectures = config.get("architectures") or []
    named = isinstance(architectures, list) and all(isinstance(n, str) for n in architectures)
    if not named:
        raise ModelFileError(
            f"config.json: architectures must be a list of names, got {short(architectures)}"
        )
    model_type = config.get("model_type")
    of_type = {kind: architecture for architecture, kind, _ in FAMILIES}.get(str(model_type))
    if not architectures:
        return of_type or f"of model_type {short(model_type)}"
    first = str(architectures[0])
    name = PUBLISHED_AS.get(first, first)
    file_of = {architecture: file for architecture, _, file in FAMILIES}
    if of_type is not None and name in file_of and file_of[of_type] != file_of[name]:
        return of_type
    return name


def generation_options(
    config: dict[str, Any], generation_config: dict[str, Any] | None
) -> dict[str, Any]:
    """generation_config.json, or what transformers makes of config.json where there is none."""
    if generation_config is not None:
        return generation_config
    if config.get("force_bos_token_to_be_generated"):  # as the first files of BART say it
        return {**config, "forced_bos_token_id": config.get("bos_token_id")}
    return config


def convert(
    architecture: str,
    config: dict[str, Any],
    generation_config: dict[str, Any] | None,
    state: Mapping[str, Weight],
    directory: Directory | None,
) -> Loaded:
    import numpy as np

    from decoding.models.weights.checkpoint import Checkpoint
    from decoding.models.weights.dequantised import dequantised
    from decoding.models.weights.dtypes import EXACT, name_of
    from decoding.models.weights.lazy import Weights
    from decoding.models.weights.quantization_config import scheme_of

    families = {name: file for name, _, file in FAMILIES}
    if architecture not in families:
        raise ValueError(
            f"the architecture {short(architecture)} is not supported, only {', '.join(families)}"
        )
    quantization, named = config.get("quantization_config"), None
    if quantization is not None:
        state = dequantised(state, scheme_of(quantization))
        named = name_of(config.get("dtype") or config.get("torch_dtype"))
    family = import_module(f"decoding.models.families.{families[architecture]}")
    whole = {**family.DEFAULTS, **config}
    checkpoint = Checkpoint(state)
    with np.errstate(all="ignore"):  # what is not finite is found when it is read
        spec, canonical = family.convert(whole, checkpoint)
    return Loaded(
        architecture=architecture,
        spec=spec,
        state=Weights(canonical),
        stored=named if named in EXACT else checkpoint.dtype,
        config=whole,
        generation_config=generation_options(config, generation_config),
        files=directory,
    )
