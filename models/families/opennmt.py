"""The Transformer of OpenNMT-py (Klein et al. 2017): pre-norm, with a norm behind each stack."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding.models.layouts.options import (
    MOST_HEADS,
    activation,
    flag,
    integer,
    layer_count,
    must_be,
    positive,
    size,
)
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight, joined, moved
from decoding.models.weights.shapes import shapes

DEFAULTS = {
    "add_ffnbias": True,  # before version 3 there was no choice
    "add_qkvbias": True,
    "heads": 8,
    "norm_eps": 1e-6,
    "pos_ffn_activation_fn": "relu",
}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu"}

# Options that change what a layer computes, and their supported values.
PLAIN = {
    "copy_attn": False,
    "layer_norm": "standard",
    "max_relative_positions": 0,
    "num_experts": 0,
    "num_kv": 0,
    "parallel_residual": False,
    "position_encoding": True,
    "sliding_window": 0,
}

# The stored names of each part of a layer or stack; several are stacked.
PARTS = {
    "self_attention.qkv": [f"self_attn.linear_{part}" for part in ("query", "keys", "values")],
    "self_attention.out": ["self_attn.final_linear"],
    "cross_attention.norm": ["layer_norm_2"],
    "cross_attention.q": ["context_attn.linear_query"],
    "cross_attention.kv": [f"context_attn.linear_{part}" for part in ("keys", "values")],
    "cross_attention.out": ["context_attn.final_linear"],
    "feed_forward.norm": ["feed_forward.layer_norm"],
    "feed_forward.up": ["feed_forward.w_1"],
    "feed_forward.down": ["feed_forward.w_2"],
    "norm": ["layer_norm"],
}
NAME = re.compile(
    r"(?P<side>encoder|decoder)\.(layers\.(?P<layer>\d+)\.)?(?P<part>.+)\.(?P<kind>weight|bias)"
)
LAYERS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
NORM = {"encoder": "layer_norm", "decoder": "layer_norm_1"}  # of self-attention


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    for option in ("encoder_type", "decoder_type"):
        must_be(config, option, "transformer")
    for option, implemented in PLAIN.items():
        must_be(config, option, implemented)
    if config.get("self_attn_type") not in (None, "scaled-dot", "scaled-dot-flash"):
        must_be(config, "self_attn_type", "scaled-dot")
    spec = ModelSpec(
        encoder=stack_spec(config, checkpoint, "encoder"),
        decoder=stack_spec(config, checkpoint, "decoder"),
    )
    expected = shapes(spec, lambda name: True)
    state: dict[str, Weight] = {}
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        assert stack is not None
        embeddings = f"{side}.embeddings.make_embedding"
        state[f"{side}.embed.tokens"] = checkpoint.take(
            f"{embeddings}.emb_luts.0.weight", stack.vocab, stack.hidden
        )
        table = checkpoint.take(f"{embeddings}.pe.pe", stack.positions, 1, stack.hidden)
        state[f"{side}.embed.positions"] = moved(
            (stack.positions, stack.hidden), lambda rows: rows[:, 0], table
        )
    for name in ("output.weight", "output.bias"):
        stored = name.replace("output", "generator")
        state[name] = checkpoint.take(stored, *expected[name])
    for name, shape in expected.items():
        if name not in state:
            state[name] = weight(config, checkpoint, name, shape)
    checkpoint.finish(lambda name: False)
    return spec, state


def stack_spec(config: Mapping[str, Any], checkpoint: Checkpoint, side: str) -> StackSpec:
    """The widths are the tables': how the options call them has changed from version to version."""
    embeddings = f"{side}.embeddings.make_embedding"
    vocab, hidden = checkpoint.shape(f"{embeddings}.emb_luts.0.weight", 2)
    heads = integer(config, "heads", 1, MOST_HEADS)
    layers = layer_count(config, f"{side[:3]}_layers")
    if hidden % heads:
        raise ValueError(f"the configuration: heads={heads} does not divide a width of {hidden}")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_dim=hidden // heads,
        ffn=size(config, "transformer_ff"),
        vocab=vocab,
        positions=checkpoint.shape(f"{embeddings}.pe.pe", 3)[0],
        activation=activation(config, "pos_ffn_activation_fn", ACTIVATIONS),
        embed_scale=math.sqrt(hidden),
        embed_norm=False,
        pre_norm=True,
        final_norm=True,
        eps=positive(config, "norm_eps"),
        attention_scale=((hidden // heads) ** -0.5,) * layers,
    )


def weight(
    config: Mapping[str, Any], checkpoint: Checkpoint, name: str, shape: tuple[int, ...]
) -> Weight:
    """A canonical weight of a layer, or a norm of a stack; a bias that the model lacks is zero."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    side, layer, part, kind = match["side"], match["layer"], match["part"], match["kind"]
    if kind == "bias" and "norm" not in part:
        option = "add_ffnbias" if part.startswith("feed_forward") else "add_qkvbias"
        if not flag(config, option):
            return np.zeros(shape, np.float32)
    stack = side if layer is None else f"{LAYERS[side]}.{layer}"
    sources = [NORM[side]] if part == "self_attention.norm" else PARTS[part]
    rows = shape[0] // len(sources)
    return joined(
        *(checkpoint.take(f"{stack}.{source}.{kind}", rows, *shape[1:]) for source in sources)
    )
