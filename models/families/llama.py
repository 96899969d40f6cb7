"""Llama 1 to 3 (Touvron et al. 2023) as transformers' LlamaForCausalLM stores it, and what the many
families have in common that are built like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from decoding.models.files import short
from decoding.models.layouts import causal
from decoding.models.layouts.options import (
    MOST_HEAD,
    MOST_HEADS,
    activation,
    flag,
    head_dim,
    integer,
    layer_count,
    positive,
    size,
)
from decoding.models.layouts.rotary import positions, rotary
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYOUT = causal.Layout(
    base="model.",
    layers="layers",
    parts={
        "embed.tokens": ("embed_tokens",),
        "self_attention.norm": ("input_layernorm",),
        "self_attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attention.out": ("self_attn.o_proj",),
        "feed_forward.norm": ("post_attention_layernorm",),
        "feed_forward.up": ("mlp.gate_proj", "mlp.up_proj"),
        "feed_forward.down": ("mlp.down_proj",),
        "norm": ("norm",),
    },
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    biases = attention_biases(config)
    if flag(config, "mlp_bias"):
        biases |= {"up", "down"}
    decoder, computed = decoder_spec(config)
    layout = replace(LAYOUT, biases=biases)
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), layout, computed)


def attention_biases(config: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({"qkv", "out"} if flag(config, "attention_bias") else ())


def decoder_spec(
    config: Mapping[str, Any], *, partial: bool = False
) -> tuple[StackSpec, dict[str, Array]]:
    """Of Llama, and the weight of its rotary positions. partial: whether a part of a head may be
    rotated; in transformers 5 only some families read that option, and the others leave it out."""
    hidden, layers = size(config, "hidden_size"), layer_count(config, "num_hidden_layers")
    heads, kv_heads, width = heads_of(config)
    rope, computed = rotary(config, width)
    if rope.size < width and not partial:
        raise ValueError(
            f"the configuration: partial_rotary_factor rotates {rope.size} of {width} numbers of "
            "a head, and transformers rotates all of this family's: leave it out if that is right"
        )
    spec = StackSpec(
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_dim=width,
        ffn=size(config, "intermediate_size"),
        vocab=size(config, "vocab_size"),
        positions=positions(config, rope),
        activation=activation(config, "hidden_act"),
        embed_scale=1.0,
        embed_norm=False,
        pre_norm=True,
        final_norm=True,
        eps=positive(config, "rms_norm_eps"),
        attention_scale=(width**-0.5,) * layers,
        kv_heads=kv_heads,
        position_table=False,
        rms=True,
        gated=True,
        rotary=rope,
    )
    return spec, computed


def heads_of(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Heads of queries, those of keys and values, and their width."""
    heads = integer(config, "num_attention_heads", 1, MOST_HEADS)
    if config.get("head_dim") is None:
        width = head_dim(config, "hidden_size", "num_attention_heads")
    else:
        width = integer(config, "head_dim", 1, MOST_HEAD)
    if config.get("num_key_value_heads") is None:
        return heads, heads, width
    kv_heads = integer(config, "num_key_value_heads", 1, MOST_HEADS)
    if heads % kv_heads:
        raise ValueError(
            f"the configuration: num_key_value_heads={kv_heads} does not divide "
            f"num_attention_heads={heads}"
        )
    return heads, kv_heads, width


SLIDING, FULL = "sliding_attention", "full_attention"


def windows(config: Mapping[str, Any], slides: Callable[[int], bool]) -> tuple[int, ...]:
    """StackSpec.window. slides: whether a layer does, by its number, where `layer_types` is silent;
    without `sliding_window` none does."""
    if config.get("sliding_window") is None:
        return ()
    window, layers = size(config, "sliding_window"), layer_count(config, "num_hidden_layers")
    types = config.get("layer_types") or [
        SLIDING if slides(layer) else FULL for layer in range(layers)
    ]
    if (
        not isinstance(types, list)
        or len(types) != layers
        or any(kind not in (SLIDING, FULL) for kind in types)
    ):
        raise ValueError(
            f"the configuration: layer_types must be {layers} of {SLIDING} or {FULL}, "
            f"got {short(types)}"
        )
    return tuple(window if kind == SLIDING else 0 for kind in types) if SLIDING in types else ()
