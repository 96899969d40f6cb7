"""GPT-NeoX (Black et al. 2022) and Pythia as transformers' GPTNeoXForCausalLM stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import llama
from decoding.models.layouts import causal
from decoding.models.layouts.options import flag, positive
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "use_parallel_residual": True,
    "attention_bias": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LAYOUT = causal.Layout(
    base="gpt_neox.",
    layers="layers",
    parts={
        "embed.tokens": ("embed_in",),
        "self_attention.norm": ("input_layernorm",),
        "self_attention.qkv": ("attention.query_key_value",),
        "self_attention.out": ("attention.dense",),
        "feed_forward.norm": ("post_attention_layernorm",),
        "feed_forward.up": ("mlp.dense_h_to_4h",),
        "feed_forward.down": ("mlp.dense_4h_to_h",),
        "norm": ("final_layer_norm",),
    },
    output="embed_out",  # in memory it is lm_head
    biases=frozenset({"norm", "up", "down"}),
    by_head=True,
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    named_as_llama = {
        "rms_norm_eps": positive(config, "layer_norm_eps"),
        "rope_theta": positive(config, "rotary_emb_base"),
        "partial_rotary_factor": positive(config, "rotary_pct"),
    }
    decoder, computed = llama.decoder_spec({**config, **named_as_llama}, partial=True)
    parallel = flag(config, "use_parallel_residual")
    decoder = replace(decoder, rms=False, gated=False, parallel=parallel)
    layout = replace(
        LAYOUT,
        output="lm_head" if "lm_head.weight" in checkpoint else LAYOUT.output,
        biases=LAYOUT.biases | llama.attention_biases(config),
    )
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), layout, computed)
