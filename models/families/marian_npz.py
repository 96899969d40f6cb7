"""Marian (Junczys-Dowmunt et al. 2018) as its own model.npz stores it.

The decoder's first input is no token but a row of zeros: it becomes one here, behind the others,
which the output's bias keeps from being generated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding.models.files import short
from decoding.models.layouts.options import activation, flag, head_dim, layer_count, must_be, size
from decoding.models.layouts.positions import fairseq_sinusoids
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import LazyTensor, Weight, joined, moved
from decoding.models.weights.shapes import shapes

DEFAULTS = {
    "transformer-decoder-autoreg": "self-attention",
    "transformer-ffn-depth": 2,
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-preprocess": "",
}
ACTIVATIONS = {"relu": "relu", "swish": "silu"}  # its gelu is an approximation of its own

# Options that change what the model computes, and their supported values.
PLAIN = {
    "factors-combine": "sum",
    "lemma-dim-emb": 0,
    "transformer-attention-mask": "default",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-disable-position-embeddings": False,
    "transformer-ffn-depth": 2,
    "transformer-no-affine": False,
    "transformer-no-bias": False,
    "transformer-no-projection": False,
    "transformer-pool": False,
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "type": "transformer",
    "ulr": False,
}

POSITIONS = 1024  # Marian computes as many as it needs
NEVER = -1e4  # a logit far below all others, which float16 has too

# The stored names of each part of a layer: block and projections, and the norms.
LINEAR = {
    "self_attention.qkv": ("self", "qkv"),
    "self_attention.out": ("self", "o"),
    "cross_attention.q": ("context", "q"),
    "cross_attention.kv": ("context", "kv"),
    "cross_attention.out": ("context", "o"),
    "feed_forward.up": ("ffn", "1"),
    "feed_forward.down": ("ffn", "2"),
}
NORM = {
    "self_attention.norm": "self_Wo",
    "cross_attention.norm": "context_Wo",
    "feed_forward.norm": "ffn_ffn",
}
NAME = re.compile(
    r"(?P<side>encoder|decoder)\.(layers\.(?P<layer>\d+)\.)?(?P<part>.+)\.(?P<kind>weight|bias)"
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    for option, implemented in PLAIN.items():
        must_be(config, option, implemented)
    state = tables(config, checkpoint)
    encoder = stack_spec(config, "encoder", state["encoder.embed.tokens"].shape[0])
    decoder = stack_spec(config, "decoder", state["decoder.embed.tokens"].shape[0])
    spec = ModelSpec(encoder=encoder, decoder=decoder)
    checkpoint.check_computed("dim-emb", POSITIONS, decoder.hidden)
    positions = fairseq_sinusoids(POSITIONS, decoder.hidden, first=0)
    for side in ("encoder", "decoder"):
        state[f"{side}.embed.positions"] = positions
    for name, shape in shapes(spec).items():
        if name not in state:
            state[name] = weight(checkpoint, name, shape, decoder.pre_norm)
    checkpoint.finish(lambda name: False)
    return spec, state


def stack_spec(config: Mapping[str, Any], side: str, vocab: int) -> StackSpec:
    hidden, layers = size(config, "dim-emb"), layer_count(config, f"{side[:3]}-depth")
    width = head_dim(config, "dim-emb", "transformer-heads")
    own_ffn = side == "decoder" and config.get("transformer-decoder-dim-ffn")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=size(config, "transformer-decoder-dim-ffn" if own_ffn else "transformer-dim-ffn"),
        vocab=vocab,
        positions=POSITIONS,
        activation=activation(config, "transformer-ffn-activation", ACTIVATIONS),
        embed_scale=math.sqrt(hidden),
        embed_norm=steps(config, "transformer-postprocess-emb", "", "n") == "n",
        pre_norm=is_pre_norm(config),
        final_norm=steps(config, "transformer-postprocess-top", "", "n") == "n",
        eps=1e-6,
        attention_scale=(width**-0.5,) * layers,
    )


def is_pre_norm(config: Mapping[str, Any]) -> bool:
    """Raises ValueError where a block has more norms than one, or none."""
    before = steps(config, "transformer-preprocess", "", "n")
    steps(config, "transformer-postprocess", "a" if before else "an")
    return before == "n"


def steps(config: Mapping[str, Any], option: str, *implemented: str) -> str:
    """What an option lists of a (add), n (normalise) and d (dropout, which is training's)."""
    found = str(config.get(option) or "").replace("d", "")
    if found not in implemented:
        raise ValueError(
            f"the configuration: {option}={short(config[option])} is not supported here, only "
            f"{' or '.join(repr(each) for each in implemented)}, with or without d"
        )
    return found


def tables(config: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Weight]:
    """The token tables and the output's; those of the decoder have a last row of zeros."""
    everything = flag(config, "tied-embeddings-all")
    one = everything or flag(config, "tied-embeddings-src")
    target = with_start(checkpoint, "Wemb" if one else "decoder_Wemb")
    state: dict[str, Weight] = {
        "encoder.embed.tokens": target if one else table(checkpoint, "encoder_Wemb"),
        "decoder.embed.tokens": target,
    }
    if everything or flag(config, "tied-embeddings"):
        state["output.weight"] = target
    elif "decoder_ff_logit_out_W" in checkpoint:  # until version 1.8
        rows, hidden = target.shape
        old = checkpoint.take("decoder_ff_logit_out_W", hidden, rows - 1)
        state["output.weight"] = moved(target.shape, lambda stored: with_zeros(stored.T), old)
    else:
        state["output.weight"] = with_start(checkpoint, "decoder_ff_logit_out_Wt")
    bias = np.zeros(target.shape[0], np.float32)
    if not flag(config, "output-omit-bias"):
        bias[:-1] = checkpoint.take("decoder_ff_logit_out_b", 1, len(bias) - 1).read()[0]
    bias[-1] = NEVER
    state["output.bias"] = bias
    return state


def table(checkpoint: Checkpoint, name: str) -> LazyTensor:
    return checkpoint.take(name, *checkpoint.shape(name, 2))


def with_start(checkpoint: Checkpoint, name: str) -> LazyTensor:
    """A table [V, H], and the row of the token that starts the decoder."""
    rows = table(checkpoint, name)
    return moved((rows.shape[0] + 1, *rows.shape[1:]), with_zeros, rows)


def with_zeros(rows: Array) -> Array:
    return np.concatenate([rows, np.zeros_like(rows[:1])])


def weight(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], pre_norm: bool) -> LazyTensor:
    """A canonical weight of a layer, or a norm of a stack."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    side, part, kind = match["side"], match["part"], match["kind"]
    stack = side if match["layer"] is None else f"{side}_l{int(match['layer']) + 1}"
    if part in LINEAR:
        block, projections = LINEAR[part]
        outputs = shape[0] // len(projections)
        if kind == "weight":  # [inputs, outputs]
            stored = [f"{stack}_{block}_W{each}" for each in projections]
            parts = [checkpoint.take(each, shape[1], outputs) for each in stored]
            return joined(*(moved((outputs, shape[1]), np.transpose, part) for part in parts))
        stored = [f"{stack}_{block}_b{each}" for each in projections]
        return joined(*(row(checkpoint, each, outputs) for each in stored))
    which = {"embed.norm": "emb", "norm": "top"}.get(part) or NORM[part]
    before = "_pre" if part == "embed.norm" or (part in NORM and pre_norm) else ""
    kind = "scale" if kind == "weight" else "bias"
    return row(checkpoint, f"{stack}_{which}_ln_{kind}{before}", *shape)


def row(checkpoint: Checkpoint, name: str, size: int) -> LazyTensor:
    """What Marian stores as [1, size]."""
    return moved((size,), lambda stored: stored[0], checkpoint.take(name, 1, size))
