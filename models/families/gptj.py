"""GPT-J (Wang & Komatsuzaki 2021) as transformers' GPTJForCausalLM stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import gpt2
from decoding.models.layouts import causal
from decoding.models.layouts.options import MOST_HEAD, integer
from decoding.models.layouts.positions import rotary_frequencies
from decoding.models.layouts.rotary import rotary_size
from decoding.models.spec import ModelSpec, RotarySpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "activation_function": "gelu_new",
    "n_positions": 2048,
    "rotary_dim": 64,
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
LAYOUT = causal.Layout(
    base="transformer.",
    layers="h",
    parts={
        "embed.tokens": ("wte",),
        "self_attention.norm": ("ln_1",),
        "self_attention.qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        "self_attention.out": ("attn.out_proj",),
        "feed_forward.up": ("mlp.fc_in",),
        "feed_forward.down": ("mlp.fc_out",),
        "norm": ("ln_f",),
    },
    biases=frozenset({"norm", "up", "down", "output"}),
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    rotary_dim = integer(config, "rotary_dim", 1, MOST_HEAD)
    fixed = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
    decoder = gpt2.decoder_spec({**config, **fixed})  # which are options of GPT-2 alone
    decoder = replace(
        decoder,
        position_table=False,
        parallel=True,
        shared_norm=True,
        rotary=RotarySpec(
            rotary_size("rotary_dim", rotary_dim, decoder.head_dim), interleaved=True
        ),
    )
    computed = {"decoder.rotary": rotary_frequencies(rotary_dim)}
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), LAYOUT, computed)
