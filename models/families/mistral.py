"""Mistral (Jiang et al. 2023) as transformers' MistralForCausalLM stores it: Llama with a sliding
window."""

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
    **llama.DEFAULTS,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    decoder, computed = llama.decoder_spec(config)
    decoder = replace(decoder, window=llama.windows(config, lambda layer: True))
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), llama.LAYOUT, computed)
