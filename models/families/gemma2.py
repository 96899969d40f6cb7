"""Gemma 2 (Gemma Team 2024) as transformers' Gemma2ForCausalLM stores it: Gemma with norms behind
each block too, windows in every other layer, and caps of scores and logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import gemma, llama
from decoding.models.layouts import causal
from decoding.models.layouts.options import activation, must_be, positive
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    **gemma.DEFAULTS,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
PARTS = {
    **llama.LAYOUT.parts,
    "self_attention.post_norm": ("post_attention_layernorm",),
    "feed_forward.norm": ("pre_feedforward_layernorm",),
    "feed_forward.post_norm": ("post_feedforward_layernorm",),
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    must_be(config, "use_bidirectional_attention", False)
    decoder, computed = llama.decoder_spec(config)
    decoder = replace(
        decoder,
        activation=activation(config, "hidden_activation"),
        embed_scale=math.sqrt(decoder.hidden),
        attention_scale=(positive(config, "query_pre_attn_scalar") ** -0.5,) * decoder.layers,
        post_norm=True,
        attention_cap=cap(config, "attn_logit_softcapping"),
        window=llama.windows(config, lambda layer: layer % 2 == 0),
    )
    spec = ModelSpec(None, decoder, logits_cap=cap(config, "final_logit_softcapping"))
    biases = llama.attention_biases(config)
    layout = replace(llama.LAYOUT, gain=1.0, parts=PARTS, biases=biases)
    return causal.convert(config, checkpoint, spec, layout, computed)


def cap(config: Mapping[str, Any], name: str) -> float:
    return 0.0 if config.get(name) is None else positive(config, name)
