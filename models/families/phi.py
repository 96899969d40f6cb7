"""Phi 1, 1.5 and 2 (Li et al. 2023) as transformers' PhiForCausalLM stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import llama
from decoding.models.layouts import causal
from decoding.models.layouts.options import must_be, positive
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "hidden_act": "gelu_new",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYOUT = causal.Layout(
    base="model.",
    layers="layers",
    parts={
        **llama.LAYOUT.parts,
        "self_attention.out": ("self_attn.dense",),
        "feed_forward.up": ("mlp.fc1",),
        "feed_forward.down": ("mlp.fc2",),
        "norm": ("final_layernorm",),
    },
    biases=frozenset({"qkv", "out", "up", "down", "norm", "output"}),
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    must_be(config, "qk_layernorm", False)
    eps = positive(config, "layer_norm_eps")
    decoder, computed = llama.decoder_spec({**config, "rms_norm_eps": eps}, partial=True)
    decoder = replace(decoder, rms=False, gated=False, parallel=True, shared_norm=True)
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), LAYOUT, computed)
