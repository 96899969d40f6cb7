"""DistilBERT (Sanh et al. 2019) as transformers' DistilBertModel stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.models.layouts import encoder
from decoding.models.layouts.options import activation, head_dim, layer_count, size
from decoding.models.spec import EncoderSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {"activation": "gelu", "max_position_embeddings": 512, "pad_token_id": 0}
PARTS = {
    "embed.norm": ("embeddings.LayerNorm",),
    "self_attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "self_attention.out": ("attention.out_lin",),
    "self_attention.norm": ("sa_layer_norm",),
    "feed_forward.up": ("ffn.lin1",),
    "feed_forward.down": ("ffn.lin2",),
    "feed_forward.norm": ("output_layer_norm",),
}
LAYOUT = encoder.Layout("distilbert.", "transformer.layer", PARTS)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[EncoderSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    hidden, layers = size(config, "dim"), layer_count(config, "n_layers")
    width = head_dim(config, "dim", "n_heads")
    stack = StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=size(config, "hidden_dim"),
        vocab=size(config, "vocab_size"),
        positions=size(config, "max_position_embeddings"),
        activation=activation(config, "activation"),
        embed_scale=1.0,
        embed_norm=True,
        pre_norm=False,
        final_norm=False,
        eps=1e-12,
        attention_scale=(width**-0.5,) * layers,
    )
    return encoder.convert(checkpoint, stack, LAYOUT)
