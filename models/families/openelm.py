"""OpenELM (Mehta et al. 2024) as its authors store it, OpenELMForCausalLM: each layer has as many
heads, and as wide a feed-forward block, as its depth deserves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.models.files import short
from decoding.models.layouts import causal
from decoding.models.layouts.options import (
    MOST_HEAD,
    activation,
    flag,
    integer,
    layer_count,
    must_be,
    positive,
    size,
    sizes,
)
from decoding.models.layouts.positions import rotary_frequencies
from decoding.models.layouts.rotary import rotary_size
from decoding.models.spec import ModelSpec, RotarySpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "activation_fn_name": "swish",
    "ffn_dim_divisor": 256,
    "ffn_with_glu": True,
    "max_context_length": 2048,
    "normalize_qk_projections": True,
    "rope_freq_constant": 10000,
    "share_input_output_layers": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYOUT = causal.Layout(
    base="transformer.",
    layers="layers",
    parts={
        "embed.tokens": ("token_embeddings",),
        "self_attention.norm": ("attn_norm",),
        "self_attention.qkv": ("attn.qkv_proj",),
        "self_attention.q_norm": ("attn.q_norm",),
        "self_attention.k_norm": ("attn.k_norm",),
        "self_attention.out": ("attn.out_proj",),
        "feed_forward.norm": ("ffn_norm",),
        "feed_forward.up": ("ffn.proj_1",),
        "feed_forward.down": ("ffn.proj_2",),
        "norm": ("norm",),
    },
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    must_be(config, "normalization_layer_name", "rms_norm")
    decoder = decoder_spec(config)
    frequencies = rotary_frequencies(decoder.head_dim, positive(config, "rope_freq_constant"))
    return causal.convert(
        {"tie_word_embeddings": flag(config, "share_input_output_layers")},
        checkpoint,
        ModelSpec(None, decoder),
        LAYOUT,
        {"decoder.rotary": frequencies},
    )


def decoder_spec(config: Mapping[str, Any]) -> StackSpec:
    layers = layer_count(config, "num_transformer_layers")
    width = integer(config, "head_dim", 1, MOST_HEAD)
    return StackSpec(
        layers=layers,
        hidden=size(config, "model_dim"),
        heads=sizes(config, "num_query_heads", layers),
        kv_heads=sizes(config, "num_kv_heads", layers),
        head_dim=width,
        ffn=ffn_sizes(config, layers),
        vocab=size(config, "vocab_size"),
        positions=size(config, "max_context_length"),
        activation=activation(config, "activation_fn_name"),
        embed_scale=1.0,
        embed_norm=False,
        pre_norm=True,
        final_norm=True,
        eps=1e-6,
        attention_scale=(width**-0.5,) * layers,
        position_table=False,
        rms=True,
        gated=flag(config, "ffn_with_glu"),
        head_norm=flag(config, "normalize_qk_projections"),
        rotary=RotarySpec(rotary_size("head_dim", width, width)),
    )


def ffn_sizes(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The multiple of ffn_dim_divisor next to each layer's multiple of model_dim, but at least nine
    tenths of it."""
    hidden, unit = size(config, "model_dim"), size(config, "ffn_dim_divisor")
    multipliers = config.get("ffn_multipliers")
    if not isinstance(multipliers, list) or len(multipliers) != layers:
        raise ValueError(
            f"the configuration must set ffn_multipliers to {layers} numbers, "
            f"got {short(multipliers)}"
        )
    sizes = []
    for multiplier in multipliers:
        asked = hidden * positive({"ffn_multipliers": multiplier}, "ffn_multipliers")
        near = max(unit, int(asked + unit / 2) // unit * unit)
        sizes.append(near + unit if near < 0.9 * asked else near)
    return tuple(sizes)
