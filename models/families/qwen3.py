"""Qwen3 (Yang et al. 2025) as transformers' Qwen3ForCausalLM stores it: Qwen2 without its biases,
with norms of each head's queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import llama, qwen2
from decoding.models.layouts import causal
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {**qwen2.DEFAULTS, "head_dim": 128}
PARTS = {
    **llama.LAYOUT.parts,
    "self_attention.q_norm": ("self_attn.q_norm",),
    "self_attention.k_norm": ("self_attn.k_norm",),
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    decoder, computed = llama.decoder_spec(config)
    decoder = replace(decoder, window=qwen2.windows(config), head_norm=True)
    layout = replace(llama.LAYOUT, parts=PARTS, biases=llama.attention_biases(config))
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), layout, computed)
