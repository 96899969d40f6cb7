"""Small new models of transformers, and directories that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from decoding.models import Loaded
from tests.support.packed import pack

State = dict[str, Tensor]
Config = dict[str, Any]
SHARED = "model.shared.weight"
ENCODER = "model.encoder.embed_tokens.weight"
DECODER = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def marian(**options: Any) -> Any:
    torch.manual_seed(0)
    settings = {
        "vocab_size": 30, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24, "max_position_embeddings": 12, "pad_token_id": 29,
        "decoder_start_token_id": 29,
    }  # fmt: skip
    return transformers.MarianMTModel(transformers.MarianConfig(**settings | options))


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    settings = {
        "vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12,
        "bos_token_id": 1, "eos_token_id": 1,
    }  # fmt: skip
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings | options))


def bart(**options: Any) -> Any:
    torch.manual_seed(0)
    settings = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    small = {"vocab_size": 30, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2}
    small |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 12}
    config = transformers.BartConfig(**small | settings | options)
    return transformers.BartForConditionalGeneration(config)


def opt(**options: Any) -> Any:
    torch.manual_seed(0)
    settings = {
        "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "ffn_dim": 24, "max_position_embeddings": 12, "word_embed_proj_dim": 8,
    }  # fmt: skip
    return transformers.OPTForCausalLM(transformers.OPTConfig(**settings | options))


FAMILIES = {"marian": marian, "gpt2": gpt2}
REFUSED = FAMILIES | {"bart": bart, "opt": opt}


def assert_same(ours: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert ours[name].dtype == torch.float32
        torch.testing.assert_close(ours[name], tensor.float(), rtol=0, atol=0, msg=name)


def is_one(loaded: Loaded, *names: str) -> bool:
    """Whether weights are stored once where the engine reads them."""
    packed = pack(loaded.state, loaded.spec)
    return len({packed[name].data_ptr() for name in names}) == 1


def write(directory: Path, model: Any, state: State | None = None, **config: Any) -> Path:
    """A directory of one safetensors file, with `config` changed (None takes an entry away)."""
    directory.mkdir(exist_ok=True)
    if state is None:
        state = stored(model)
    save_file(state, directory / "model.safetensors")
    written = model.config.to_dict() | {"architectures": [type(model).__name__]} | config
    kept = {name: value for name, value in written.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
    return directory


def stored(model: Any) -> State:
    """What save_pretrained would store, each tensor with memory of its own."""
    tied = {DECODER, ENCODER} if SHARED in model.state_dict() else set()
    if model.config.tie_word_embeddings:
        tied.add(OUTPUT)
    computed = "embed_positions" if model.config.model_type == "marian" else None
    return {
        name: tensor.clone()
        for name, tensor in model.state_dict().items()
        if name not in tied and computed not in name.split(".")
    }
