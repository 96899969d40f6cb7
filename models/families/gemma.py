"""Gemma (Gemma Team 2024) as transformers' GemmaForCausalLM stores it: Llama whose token rows are
scaled and whose norms hold how much more than one they multiply by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import llama
from decoding.models.layouts import causal
from decoding.models.layouts.options import ACTIVATIONS, activation, must_be
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "num_key_value_heads": 16,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
# The first files say gelu and mean what the models were trained with.
GELU = {**ACTIVATIONS, "gelu": "gelu_tanh"}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    must_be(config, "use_bidirectional_attention", False)
    decoder, computed = llama.decoder_spec(config)
    decoder = replace(
        decoder,
        activation=activation(config, "hidden_act", GELU),
        embed_scale=math.sqrt(decoder.hidden),
    )
    layout = replace(llama.LAYOUT, gain=1.0, biases=llama.attention_biases(config))
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), layout, computed)
