"""The Transformer of fairseq (Ott et al. 2019), whose names transformers' BART has kept, and its
LightConv and DynamicConv."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from decoding.models.families.lightconv import convolution_spec, convolution_weight
from decoding.models.files import short
from decoding.models.layouts.options import activation, flag, head_dim, layer_count, must_be, size
from decoding.models.layouts.positions import fairseq_sinusoids
from decoding.models.layouts.seq2seq import stored_names
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight, joined, moved
from decoding.models.weights.shapes import shapes

DEFAULTS = {
    "activation_fn": "relu",
    "decoder_glu": True,
    "encoder_glu": True,
    "max_source_positions": 1024,
    "max_target_positions": 1024,
    "task": "translation",
    "weight_softmax": True,
}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
FIRST = 2  # a sentence's first position: the pad token's id + 1

# Versions, computed positions, and the copies of an encoder's weights that version 0.12 stores.
IGNORED = re.compile(
    r"(en|de)coder\.(version|embed_positions\.(weights|_float_tensor)"
    r"|layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias))"
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor.

    What has tensors of its own (adaptive softmax, input features, scaled heads, ...) is found by
    them.
    """
    arch = str(config.get("arch"))
    if not arch.startswith(("transformer", "lightconv")) or "_lm" in arch:
        raise ValueError(
            f"fairseq's arch={short(arch)} is not supported, only those of transformer and "
            "lightconv"
        )
    must_be(config, "task", "translation")
    must_be(config, "cross_self_attention", False)
    must_be(config, "no_token_positional_embeddings", False)
    spec = ModelSpec(
        encoder=stack_spec(config, checkpoint, "encoder"),
        decoder=stack_spec(config, checkpoint, "decoder"),
    )
    expected = shapes(spec)
    state: dict[str, Weight] = {
        "output.weight": checkpoint.take(output(config, checkpoint), *expected["output.weight"])
    }
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        assert stack is not None
        table = f"{side}.embed.tokens"
        state[table] = checkpoint.take(f"{side}.embed_tokens.weight", *expected[table])
        state[f"{side}.embed.positions"] = positions(config, checkpoint, side, stack)
    for name, shape in expected.items():
        if ".convolution." in name:
            state[name] = convolution_weight(config, checkpoint, name, shape)
        elif name not in state:
            sources = stored_names(name)
            part = (shape[0] // len(sources), *shape[1:])
            state[name] = joined(*(checkpoint.take(source, *part) for source in sources))
    checkpoint.finish(lambda name: IGNORED.fullmatch(name) is not None)
    return spec, state


def stack_spec(config: Mapping[str, Any], checkpoint: Checkpoint, side: str) -> StackSpec:
    hidden, layers = size(config, f"{side}_embed_dim"), layer_count(config, f"{side}_layers")
    width = head_dim(config, f"{side}_embed_dim", f"{side}_attention_heads")
    pre_norm = flag(config, f"{side}_normalize_before")
    positions = "max_source_positions" if side == "encoder" else "max_target_positions"
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=size(config, f"{side}_ffn_embed_dim"),
        vocab=checkpoint.shape(f"{side}.embed_tokens.weight", 2)[0],
        positions=size(config, positions),
        activation=activation(config, "activation_fn", ACTIVATIONS),
        embed_scale=1.0 if flag(config, "no_scale_embedding") else math.sqrt(hidden),
        embed_norm=flag(config, "layernorm_embedding"),
        pre_norm=pre_norm,
        # A model of 2018 or before has none, and a decoder may do without.
        final_norm=pre_norm and f"{side}.layer_norm.weight" in checkpoint,
        eps=1e-5,
        attention_scale=(width**-0.5,) * layers,
        convolution=convolution_spec(config, side) if is_lightconv(config) else None,
    )


def is_lightconv(config: Mapping[str, Any]) -> bool:
    return str(config["arch"]).startswith("lightconv")


def output(config: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    """Where the output's weights are: files until 2019 leave out those that are the decoder's."""
    name, table = "decoder.output_projection.weight", "decoder.embed_tokens.weight"
    tied = flag(config, "share_decoder_input_output_embed") or flag(config, "share_all_embeddings")
    return table if tied and name not in checkpoint else name


def positions(
    config: Mapping[str, Any], checkpoint: Checkpoint, side: str, spec: StackSpec
) -> Weight:
    """[positions, H]."""
    if not flag(config, f"{side}_learned_pos"):
        checkpoint.check_computed(f"{side} positions", spec.positions, spec.hidden)
        return fairseq_sinusoids(spec.positions, spec.hidden, FIRST)
    stored = f"{side}.embed_positions.weight"
    table = checkpoint.take(stored, FIRST + spec.positions, spec.hidden)
    return moved((spec.positions, spec.hidden), lambda rows: rows[FIRST:], table)
