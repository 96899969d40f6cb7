"""BLOOM (Le Scao et al. 2022) as transformers' BloomForCausalLM stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.models.layouts import causal
from decoding.models.layouts.options import head_dim, layer_count, must_be, positive, size
from decoding.models.layouts.positions import alibi_slopes
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "seq_length": 2048,  # of training; biases by distance have no end
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYOUT = causal.Layout(
    base="transformer.",
    layers="h",
    parts={
        "embed.tokens": ("word_embeddings",),
        "embed.norm": ("word_embeddings_layernorm",),
        "self_attention.norm": ("input_layernorm",),
        "self_attention.qkv": ("self_attention.query_key_value",),
        "self_attention.out": ("self_attention.dense",),
        "feed_forward.norm": ("post_attention_layernorm",),
        "feed_forward.up": ("mlp.dense_h_to_4h",),
        "feed_forward.down": ("mlp.dense_4h_to_h",),
        "norm": ("ln_f",),
    },
    biases=frozenset({"norm", "qkv", "out", "up", "down"}),
    by_head=True,
)
# Published files use names of several versions.
OTHER_NAMES = {
    "n_embed": "hidden_size",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    must_be(config, "apply_residual_connection_post_layernorm", False)
    config = {OTHER_NAMES.get(name, name): config[name] for name in config}
    decoder = decoder_spec(config)
    computed = {"decoder.position_bias": alibi_slopes(decoder.sizes(0).heads)}
    return causal.convert(config, checkpoint, ModelSpec(None, decoder), LAYOUT, computed)


def decoder_spec(config: Mapping[str, Any]) -> StackSpec:
    hidden, layers = size(config, "hidden_size"), layer_count(config, "n_layer")
    width = head_dim(config, "hidden_size", "n_head")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=4 * hidden,
        vocab=size(config, "vocab_size"),
        positions=size(config, "seq_length"),
        activation="gelu_tanh",
        embed_scale=1.0,
        embed_norm=True,
        pre_norm=True,
        final_norm=True,
        eps=positive(config, "layer_norm_epsilon"),
        attention_scale=(width**-0.5,) * layers,
        position_table=False,
        position_bias="alibi",
    )
