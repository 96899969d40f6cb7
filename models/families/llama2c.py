"""Llama as llama2.c stores it, under the names that Meta gave its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import llama
from decoding.models.layouts import causal
from decoding.models.spec import ModelSpec, RotarySpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

# llama2.c's options to those of transformers.
OPTIONS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
}
DEFAULTS = {"norm_eps": 1e-5}
LAYOUT = causal.Layout(
    base="",
    layers="layers",
    parts={
        "embed.tokens": ("tok_embeddings",),
        "self_attention.norm": ("attention_norm",),
        "self_attention.qkv": ("attention.wq", "attention.wk", "attention.wv"),
        "self_attention.out": ("attention.wo",),
        "feed_forward.norm": ("ffn_norm",),
        "feed_forward.up": ("feed_forward.w1", "feed_forward.w3"),
        "feed_forward.down": ("feed_forward.w2",),
        "norm": ("norm",),
    },
    output="output",
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    named_as_llama = {theirs: config.get(name) for name, theirs in OPTIONS.items()}
    named_as_llama |= {"hidden_act": "silu", "tie_word_embeddings": True}
    decoder, computed = llama.decoder_spec(named_as_llama)
    rope = RotarySpec(size=decoder.head_dim, interleaved=True)
    spec = ModelSpec(None, replace(decoder, rotary=rope))
    return causal.convert(named_as_llama, checkpoint, spec, LAYOUT, computed)
