"""GPT-2 (Radford et al. 2019) as transformers' GPT2LMHeadModel stores it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding.models.layouts.options import (
    activation,
    flag,
    head_dim,
    layer_count,
    must_be,
    positive,
    size,
)
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight, moved
from decoding.models.weights.shapes import shapes

DEFAULTS = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}

# The stored name of each part of a layer or of the stack.
PARTS = {
    "self_attention.norm": "ln_1",
    "self_attention.qkv": "attn.c_attn",
    "self_attention.out": "attn.c_proj",
    "feed_forward.norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "norm": "ln_f",
}
NAME = re.compile(r"decoder\.(layers\.(?P<layer>\d+)\.)?(?P<part>.+)\.(?P<kind>weight|bias)")

# Causal masks that old files hold: [1, 1, positions, positions], and a number.
MASK = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)")


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor.

    `reorder_and_upcast_attn` is about half precision and changes nothing in float32.
    """
    must_be(config, "add_cross_attention", False)
    must_be(config, "is_encoder_decoder", False)
    spec = ModelSpec(encoder=None, decoder=decoder_spec(config))
    # Published files hold the names of GPT2Model, without the language model around it.
    prefix = "" if "wte.weight" in checkpoint else "transformer."
    expected = shapes(spec)
    stored = {
        "decoder.embed.tokens": f"{prefix}wte.weight",
        "decoder.embed.positions": f"{prefix}wpe.weight",
        "output.weight": "lm_head.weight",
    }
    if "lm_head.weight" not in checkpoint and flag(config, "tie_word_embeddings"):
        stored["output.weight"] = stored["decoder.embed.tokens"]
    state: dict[str, Weight] = {
        name: checkpoint.take(source, *expected[name]) for name, source in stored.items()
    }
    for name, shape in expected.items():
        if name not in state:
            # Linear weights were stored as [inputs, outputs].
            tensor = checkpoint.take(prefix + stored_name(name), *reversed(shape))
            state[name] = moved(shape, np.transpose, tensor) if len(shape) == 2 else tensor
    checkpoint.finish(lambda name: MASK.fullmatch(name) is not None)
    return spec, state


def stored_name(name: str) -> str:
    """The stored name of a canonical weight of a layer or of the stack's norm."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    layer = "" if match["layer"] is None else f"h.{match['layer']}."
    return f"{layer}{PARTS[match['part']]}.{match['kind']}"


def decoder_spec(config: Mapping[str, Any]) -> StackSpec:
    hidden, layers = size(config, "n_embd"), layer_count(config, "n_layer")
    width = head_dim(config, "n_embd", "n_head")
    scale = width**-0.5 if flag(config, "scale_attn_weights") else 1.0
    by_layer = flag(config, "scale_attn_by_inverse_layer_idx")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=4 * hidden if config.get("n_inner") is None else size(config, "n_inner"),
        vocab=size(config, "vocab_size"),
        positions=size(config, "n_positions"),
        activation=activation(config),
        embed_scale=1.0,
        embed_norm=False,
        pre_norm=True,
        final_norm=True,
        eps=positive(config, "layer_norm_epsilon"),
        attention_scale=tuple(scale / (layer + 1 if by_layer else 1) for layer in range(layers)),
    )
