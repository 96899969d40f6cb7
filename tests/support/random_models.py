"""Small random models of transformers whose searches are worth comparing.

Their logits are peaked, so that beams differ clearly, and their EOS comes often enough for rows to
end at all lengths. Each is made once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

import decoding
from decoding.models import Loaded, ModelSpec

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # these models are too small for more

MARIAN: dict[str, dict[str, Any]] = {
    "marian": {},
    "marian-relu-wide": {"activation_function": "relu", "vocab_size": 300, "d_model": 64},
    "marian-gelu-deep": {"activation_function": "gelu", "decoder_layers": 3, "encoder_layers": 1},
    "marian-unscaled": {"scale_embedding": False, "eos_token_id": 0, "pad_token_id": 7},
    "marian-two-tables": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "vocab_size": 80,
        "decoder_vocab_size": 45,
        "pad_token_id": 44,
        "decoder_start_token_id": 44,
    },
}
GPT2: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2-wide": {"vocab_size": 300, "n_embd": 64, "n_layer": 3, "n_inner": 96},
    "gpt2-pad": {"pad_token_id": 5, "eos_token_id": 11, "scale_attn_by_inverse_layer_idx": True},
    "gpt2-pad-0": {"pad_token_id": 0, "eos_token_id": 11, "scale_attn_weights": False},
    "gpt2-tied": {"tie_word_embeddings": True, "n_layer": 1},
}
# Wide enough for every kernel of a GPU: tiles, head sizes of 64, several blocks a row.
LARGE: dict[str, dict[str, Any]] = {
    "marian-large": {
        "vocab_size": 3000,
        "d_model": 256,
        "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512,
        "activation_function": "swish",
        "max_position_embeddings": 96,
        "init_std": 0.1,
    },
    "gpt2-large": {
        "vocab_size": 3001,
        "n_embd": 256,
        "n_positions": 96,
        "initializer_range": 0.1,
        "tie_word_embeddings": True,
    },
}
# For texts of several pages.
LONG: dict[str, dict[str, Any]] = {
    "marian-long": {"max_position_embeddings": 160},
    "gpt2-long": {"n_positions": 160},
}
NAMES = [*MARIAN, *GPT2, *LARGE, *LONG]


@cache
def reference(name: str) -> Any:
    """The transformers model."""
    torch.manual_seed(NAMES.index(name))
    with torch.no_grad():
        return (marian if name.startswith("marian") else gpt2)(name).eval()


def load(name: str, device: str = "cpu", **options: Any) -> Any:
    return decoding.load(reference(name), **{"device": device, "dtype": "float32", **options})


@cache
def ours(name: str, device: str = "cpu") -> Any:
    return load(name, device, threads=1)


def marian(name: str) -> MarianMTModel:
    settings: dict[str, Any] = {
        "vocab_size": 60,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 48,
        "pad_token_id": 59,
        "bos_token_id": None,
        "eos_token_id": 3,
        "decoder_start_token_id": 59,
        "forced_eos_token_id": None,
        "init_std": 0.4,
        "scale_embedding": True,
    }
    own = (MARIAN | LARGE | LONG)[name]
    settings |= own
    if "pad_token_id" not in own:
        settings["pad_token_id"] = settings["decoder_start_token_id"] = settings["vocab_size"] - 1
    model = MarianMTModel(MarianConfig(**settings))
    randomize(model)
    for name, parameter in model.named_parameters():
        if ".layers." in name and parameter.ndim == 2 and ".fc" not in name:
            parameter *= 0.4  # else the source drowns what was generated
        elif ".fc" in name:
            parameter *= 2  # else the tied table makes each token its own successor
    eos = settings["eos_token_id"]
    model.final_logits_bias.normal_(std=0.5)
    model.final_logits_bias[:, eos] = -1e4
    ids = torch.randint(0, settings["vocab_size"], (30, 6))
    options = {"max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": True}
    scores = torch.stack(model.eval().generate(ids, eos_token_id=None, **options).scores)
    gap = (scores.max(-1).values - scores[..., eos]).quantile(0.3)
    model.final_logits_bias[:, eos] += gap  # greedy search would take it in three steps of ten
    return model


def gpt2(name: str) -> GPT2LMHeadModel:
    settings: dict[str, Any] = {
        "vocab_size": 60,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 48,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "initializer_range": 0.4,
    }
    settings |= (GPT2 | LARGE | LONG)[name]
    model = GPT2LMHeadModel(GPT2Config(**settings))
    randomize(model)
    model.lm_head.weight[settings["eos_token_id"]] *= 2
    return model


def randomize(model: torch.nn.Module) -> None:
    """Biases and norms are not left at the zeros and ones of a new model."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            noise = 0.2 * torch.randn_like(parameter)
            parameter.copy_(1 + noise if is_gain(name) else noise)


def spec_of(loaded: Loaded) -> ModelSpec:
    """The sizes of a model that generates."""
    assert isinstance(loaded.spec, ModelSpec)
    return loaded.spec


def is_gain(name: str) -> bool:
    return name.endswith("weight")
