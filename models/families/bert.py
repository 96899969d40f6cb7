"""BERT (Devlin et al. 2019) as transformers' BertModel stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.models.layouts import encoder
from decoding.models.layouts.options import (
    activation,
    head_dim,
    integer,
    layer_count,
    must_be,
    positive,
    size,
)
from decoding.models.spec import EncoderSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

MOST_TYPES = 64  # the table of positions is stored for each
DEFAULTS = {
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
PARTS = {
    "embed.norm": ("embeddings.LayerNorm",),
    "self_attention.qkv": (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
    ),
    "self_attention.out": ("attention.output.dense",),
    "self_attention.norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward.norm": ("output.LayerNorm",),
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[EncoderSpec, dict[str, Weight]]:
    layout = encoder.Layout("bert.", "encoder.layer", PARTS, typed=True)
    return encoder.convert(checkpoint, stack_spec(config), layout)


def stack_spec(config: Mapping[str, Any], *, first_position: int = 0) -> StackSpec:
    """first_position: as in `encoder.Layout`.

    Raises ValueError that names an unsupported option.
    """
    must_be(config, "is_decoder", False)
    must_be(config, "add_cross_attention", False)
    must_be(config, "position_embedding_type", "absolute")
    hidden, layers = size(config, "hidden_size"), layer_count(config, "num_hidden_layers")
    width = head_dim(config, "hidden_size", "num_attention_heads")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=size(config, "intermediate_size"),
        vocab=size(config, "vocab_size"),
        positions=size(config, "max_position_embeddings") - first_position,
        types=integer(config, "type_vocab_size", 1, MOST_TYPES),
        activation=activation(config, "hidden_act"),
        embed_scale=1.0,
        embed_norm=True,
        pre_norm=False,
        final_norm=False,
        eps=positive(config, "layer_norm_eps"),
        attention_scale=(width**-0.5,) * layers,
    )
