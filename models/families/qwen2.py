"""Qwen2 and Qwen2.5 (Yang et al. 2024) as transformers' Qwen2ForCausalLM stores them: Llama with
biases of queries, keys and values, and windows in its upper layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import llama
from decoding.models.layouts import causal
from decoding.models.layouts.options import flag, integer
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
LAYOUT = replace(llama.LAYOUT, biases=frozenset({"qkv"}))


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    decoder, computed = llama.decoder_spec(config)
    decoder = replace(decoder, window=windows(config))
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), LAYOUT, computed)


def windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    if not flag(config, "use_sliding_window"):
        return ()
    first = integer(config, "max_window_layers", 0)
    return llama.windows(config, lambda layer: layer >= first)
