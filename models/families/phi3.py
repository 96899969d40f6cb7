"""Phi-3 (Abdin et al. 2024) as transformers' Phi3ForCausalLM stores it: Llama with stacked products
and a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import llama
from decoding.models.layouts import causal
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 32000,
    "pad_token_id": 32000,
}
PARTS = {
    **llama.LAYOUT.parts,
    "self_attention.qkv": ("self_attn.qkv_proj",),
    "feed_forward.up": ("mlp.gate_up_proj",),
}
LAYOUT = replace(llama.LAYOUT, parts=PARTS)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    decoder, computed = llama.decoder_spec(config, partial=True)
    decoder = replace(decoder, window=llama.windows(config, lambda layer: True))
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), LAYOUT, computed)
