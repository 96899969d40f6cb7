"""T5 (Raffel et al. 2020) as transformers' T5ForConditionalGeneration stores it: T5, T5 1.1,
Flan-T5 and MADLAD-400.

The sums that T5's residual connections carry outgrow float16. Here they are 2^-8 of what they are
there: the tokens' rows are, and each block multiplies by 2^-4 where it makes values or widens, and
by 2^-4 where it leaves (by both there, behind an activation through which no factor passes). The
RMS norm before each block takes the factor out again, given an epsilon that is smaller by its
square. Powers of two round nothing (in float16 only what is next to zero), so this is the same
model in every type, and float16 needs no other type beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from decoding.models.layouts import seq2seq
from decoding.models.layouts.options import (
    ACTIVATIONS,
    MOST_HEAD,
    MOST_HEADS,
    activation,
    flag,
    integer,
    layer_count,
    must_be,
    positive,
    size,
)
from decoding.models.layouts.positions import rounded
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import LazyTensor, Weight, computed, joined
from decoding.models.weights.shapes import shapes

DEFAULTS = {
    "feed_forward_proj": "relu",
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
MOST_DISTANCE = 1 << 14  # the table of biases is as long
POSITIONS = 1 << 20  # biases by distance have no end: memory has, long before this

# The stored names of each part of a layer or stack; several are stacked. {last}: the sub-layer of
# feed-forward.
PARTS = {
    "self_attention.norm": ["layer.0.layer_norm"],
    "self_attention.qkv": [f"layer.0.SelfAttention.{part}" for part in "qkv"],
    "self_attention.out": ["layer.0.SelfAttention.o"],
    "cross_attention.norm": ["layer.1.layer_norm"],
    "cross_attention.q": ["layer.1.EncDecAttention.q"],
    "cross_attention.kv": [f"layer.1.EncDecAttention.{part}" for part in "kv"],
    "cross_attention.out": ["layer.1.EncDecAttention.o"],
    "feed_forward.norm": ["layer.{last}.layer_norm"],
    "feed_forward.up": ["layer.{last}.DenseReluDense.wi"],
    "feed_forward.down": ["layer.{last}.DenseReluDense.wo"],
    "norm": ["final_layer_norm"],
}
GATED_UP = ["layer.{last}.DenseReluDense.wi_0", "layer.{last}.DenseReluDense.wi_1"]
NAME = re.compile(r"(?P<side>encoder|decoder)\.(layers\.(?P<layer>\d+)\.)?(?P<part>.+)\.weight")

# Of feed_forward_proj; "gated-gelu" was published before "gelu_new" had its name.
PROJECTIONS = {
    **ACTIVATIONS,
    **{f"gated-{name}": ours for name, ours in ACTIVATIONS.items()},
    "gated-gelu": "gelu_tanh",
}
FACTOR = 2.0**-4

BIAS = "{side}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
IGNORED = {
    "shared.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint, *, bias_by_layer: bool = False
) -> tuple[ModelSpec, dict[str, Weight]]:
    """bias_by_layer: as in StackSpec. Raises ValueError that names an unsupported option or
    tensor."""
    must_be(config, "is_encoder_decoder", True)
    encoder, decoder = (
        replace(stack_spec(config, layers), bias_by_layer=bias_by_layer)
        for layers in ("num_layers", "num_decoder_layers")
    )
    spec = ModelSpec(encoder=encoder, decoder=decoder)
    expected = shapes(spec, biases=lambda name: False)
    # Files of transformers 5 say that the output is tied, also where they hold one of its own.
    state = seq2seq.tables(checkpoint, expected, base="", shared=True, tied=True)
    state["encoder.position_bias"] = position_bias(config, checkpoint, "encoder", encoder)
    state["decoder.position_bias"] = position_bias(config, checkpoint, "decoder", decoder)
    for name, shape in expected.items():
        if name not in state:
            sources = stored_names(name, gated=encoder.gated)
            part = (shape[0] // len(sources), *shape[1:])
            parts = [smaller(checkpoint, source, part, encoder) for source in sources]
            state[name] = joined(*parts)
    if scales_output(config):
        state["decoder.norm.weight"] = computed(
            (decoder.hidden,),
            lambda gain: gain * decoder.hidden**-0.5,
            state["decoder.norm.weight"],
        )
    checkpoint.finish(lambda name: name in IGNORED)
    return spec, state


def stack_spec(config: Mapping[str, Any], layers_option: str) -> StackSpec:
    if config.get(layers_option) is None:
        layers_option = "num_layers"  # as many as the encoder has
    layers = layer_count(config, layers_option)
    function, gated = feed_forward(config)
    return StackSpec(
        layers=layers,
        hidden=size(config, "d_model"),
        heads=integer(config, "num_heads", 1, MOST_HEADS),
        head_dim=integer(config, "d_kv", 1, MOST_HEAD),
        ffn=size(config, "d_ff"),
        vocab=size(config, "vocab_size"),
        positions=POSITIONS,
        activation=function,
        embed_scale=FACTOR**2,
        embed_norm=False,
        pre_norm=True,
        final_norm=True,
        eps=positive(config, "layer_norm_epsilon") * FACTOR**4,
        attention_scale=(1.0,) * layers,
        position_table=False,
        rms=True,
        gated=gated,
        position_bias="relative",
        reach=integer(config, "relative_attention_max_distance", 1, MOST_DISTANCE),
    )


def feed_forward(config: Mapping[str, Any]) -> tuple[str, bool]:
    """The activation, and whether it is of a gate. transformers writes both beside
    feed_forward_proj, which they are made of, and believes them more."""
    function = activation(config, "feed_forward_proj", PROJECTIONS)
    gated = config["feed_forward_proj"].startswith("gated-")
    if config.get("dense_act_fn") is not None:
        function = activation(config, "dense_act_fn")
    if config.get("is_gated_act") is not None:
        gated = flag(config, "is_gated_act")
    return function, gated


def position_bias(
    config: Mapping[str, Any], checkpoint: Checkpoint, side: str, spec: StackSpec
) -> Array:
    """The weight of that name, see StackSpec: each distance's bucket."""
    buckets, heads = size(config, "relative_attention_num_buckets"), spec.sizes(0).heads
    checkpoint.check_computed("relative_attention_max_distance", heads, 2 * spec.reach + 1)
    numbers = bucket_numbers(buckets, spec.reach, both=side == "encoder")
    tables = [
        checkpoint.take(BIAS.format(side=side, layer=layer), buckets, heads).read()[numbers].T
        for layer in range(spec.layers if spec.bias_by_layer else 1)
    ]
    return np.stack(tables) if spec.bias_by_layer else tables[0]


def scales_output(config: Mapping[str, Any]) -> bool:
    """Whether logits are those of hidden states times d_model^-0.5: T5, but not T5 1.1. Files of
    before transformers 5 tell the two apart by what they tie."""
    if config.get("scale_decoder_outputs") is not None:
        return flag(config, "scale_decoder_outputs")
    return config.get("tie_word_embeddings") is None or flag(config, "tie_word_embeddings")


def stored_names(name: str, *, gated: bool) -> list[str]:
    """The stored names of a canonical weight of a layer or of a stack's norm, in parts."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    layer = "" if match["layer"] is None else f"block.{match['layer']}."
    last = 1 if match["side"] == "encoder" else 2
    parts = GATED_UP if gated and match["part"] == "feed_forward.up" else PARTS[match["part"]]
    return [f"{match['side']}.{layer}{part.format(last=last)}.weight" for part in parts]


def smaller(
    checkpoint: Checkpoint, source: str, shape: tuple[int, ...], stack: StackSpec
) -> LazyTensor:
    weight, factor = checkpoint.take(source, *shape), factor_of(source.split(".")[-2], stack)
    return weight if factor == 1 else scaled(weight, factor)


def factor_of(matrix: str, stack: StackSpec) -> float:
    """What a matrix is multiplied by, by its stored name: FACTOR where a block's output is linear
    in it."""
    if matrix in ("wi", "wo") and not stack.gated and stack.activation != "relu":
        return 1.0 if matrix == "wi" else FACTOR**2
    return FACTOR if matrix in ("v", "o", "wi", "wi_1", "wo") else 1.0


def scaled(weight: LazyTensor, factor: float) -> LazyTensor:
    found = computed(weight.shape, lambda w: w * factor, weight)
    kept = weight.quantised
    if kept is not None:
        found = replace(found, quantised=replace(kept, scale=scaled(kept.scale, factor)))
    return found


def bucket_numbers(count: int, reach: int, *, both: bool) -> Array:
    """The bucket of each distance from -reach to reach of a query to a key before it: int64
    [2 * reach + 1].

    Half of the buckets are for a distance each, the others grow until `reach` is in the last. both:
    keys behind the query have half of the buckets; else they are never seen.
    """
    distance = np.arange(-reach, reach + 1)
    kinds = count // 2 if both else count
    exact = kinds // 2
    if not 0 < exact < reach:
        raise ValueError(
            f"the configuration: relative_attention_num_buckets={count} and "
            f"relative_attention_max_distance={reach} leave no buckets that grow"
        )
    far = np.abs(distance) if both else distance.clip(0)
    # In float32, as in transformers: which side of a border a distance is on depends on it.
    times = rounded(np.log, far.clip(1).astype(np.float32) / exact)
    growth = times / math.log(reach / exact) * (kinds - exact)
    number = np.where(far < exact, far, (exact + growth.astype(np.int64)).clip(max=kinds - 1))
    return number + kinds * (distance < 0) if both else number
