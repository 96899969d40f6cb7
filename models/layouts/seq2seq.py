"""Imports encoder-decoders that transformers stores under the names of BART: the whole importer
but for what a family has of its own, its `Layout`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from decoding.models.layouts.options import activation, flag, head_dim, layer_count, must_be, size
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import Weight, joined, moved
from decoding.models.weights.shapes import shapes

# The stored names of each part of a layer or stack; several are stacked.
PARTS = {
    "self_attention.norm": ["self_attn_layer_norm"],
    "self_attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention.out": ["self_attn.out_proj"],
    "cross_attention.norm": ["encoder_attn_layer_norm"],
    "cross_attention.q": ["encoder_attn.q_proj"],
    "cross_attention.kv": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "cross_attention.out": ["encoder_attn.out_proj"],
    "feed_forward.norm": ["final_layer_norm"],
    "feed_forward.up": ["fc1"],
    "feed_forward.down": ["fc2"],
    "embed.norm": ["layernorm_embedding"],
    "norm": ["layer_norm"],
}
NAME = re.compile(
    r"(?P<stack>(encoder|decoder)\.(layers\.\d+\.)?)(?P<part>.+)\.(?P<kind>weight|bias)"
)

BASE = "model."  # the prefix of all names but the output's; files of the model alone lack it
SHARED = "shared.weight"
ENCODER = "encoder.embed_tokens.weight"
DECODER = "decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"
OUTPUT_BIAS = "final_logits_bias"
POSITIONS = "{}.embed_positions.weight"

# Tensors of old files that are no weights: versions, and computed positions.
IGNORED = re.compile(r"(model\.)?(en|de)coder\.(version|embed_positions\.(weights|_float_tensor))")


@dataclass(frozen=True)
class Layout:
    """The differences between the families.

    first_position: row of the stored position table that is position 0. sinusoids: (positions,
    hidden) -> the table [positions, hidden] where a file holds none; None: it must. shared: encoder
    and decoder have one token table. target_vocab: the decoder's, where it has its own. computed:
    sinusoids count and no bias of the logits, whatever a file holds.
    """

    pre_norm: bool
    embed_norm: bool
    final_norm: bool
    first_position: int = 0
    sinusoids: Callable[[int, int], Array] | None = None
    shared: bool = True
    target_vocab: int | None = None
    computed: bool = False


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint, layout: Layout
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    must_be(config, "is_encoder_decoder", True)
    must_be(config, "is_decoder", False)
    vocab = size(config, "vocab_size")
    encoder = stack_spec(config, "encoder", vocab, layout)
    decoder = stack_spec(config, "decoder", layout.target_vocab or vocab, layout)
    spec = ModelSpec(encoder=encoder, decoder=decoder)

    expected = shapes(spec)
    tied = flag(config, "tie_word_embeddings")
    base = "" if "encoder.layers.0.fc1.weight" in checkpoint else BASE
    state = tables(checkpoint, expected, shared=layout.shared, tied=tied, base=base)
    made: list[Array] = []  # sinusoids, which both sides share
    for side in ("encoder", "decoder"):
        stored = base + POSITIONS.format(side)
        state[f"{side}.embed.positions"] = position_table(checkpoint, stored, decoder, layout, made)
    for name, shape in expected.items():
        if name not in state:
            sources = [base + source for source in stored_names(name)]
            part = (shape[0] // len(sources), *shape[1:])
            state[name] = joined(*(checkpoint.take(source, *part) for source in sources))
    if OUTPUT_BIAS in checkpoint and not layout.computed:
        bias = checkpoint.take(OUTPUT_BIAS, 1, decoder.vocab).read()[0]
        if bias.any():
            state["output.bias"] = bias
    unread = {base + SHARED} if layout.shared else set()
    if layout.computed:
        unread |= {OUTPUT_BIAS, *(base + POSITIONS.format(side) for side in ("encoder", "decoder"))}
    checkpoint.finish(lambda name: name in unread or IGNORED.fullmatch(name) is not None)
    return spec, state


def stack_spec(config: Mapping[str, Any], side: str, vocab: int, layout: Layout) -> StackSpec:
    hidden, layers = size(config, "d_model"), layer_count(config, f"{side}_layers")
    width = head_dim(config, "d_model", f"{side}_attention_heads")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=size(config, f"{side}_ffn_dim"),
        vocab=vocab,
        positions=size(config, "max_position_embeddings"),
        activation=activation(config),
        embed_scale=math.sqrt(hidden) if flag(config, "scale_embedding") else 1.0,
        embed_norm=layout.embed_norm,
        pre_norm=layout.pre_norm,
        final_norm=layout.final_norm,
        eps=1e-5,
        attention_scale=(width**-0.5,) * layers,
    )


def stored_names(name: str) -> list[str]:
    """The stored names of a canonical weight of a layer or of a stack's norm, in parts, without
    their base."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    stack, kind = match["stack"], match["kind"]
    return [f"{stack}{part}.{kind}" for part in PARTS[match["part"]]]


def position_table(
    checkpoint: Checkpoint, stored: str, spec: StackSpec, layout: Layout, made: list[Array]
) -> Weight:
    """[positions, H]. stored: its name. made: the table that was computed, if any was."""
    first = layout.first_position
    if layout.sinusoids is not None and (layout.computed or stored not in checkpoint):
        if not made:
            checkpoint.check_computed("max_position_embeddings", spec.positions, spec.hidden)
            made.append(layout.sinusoids(spec.positions, spec.hidden))
        return made[0]
    table = checkpoint.take(stored, first + spec.positions, spec.hidden)
    return moved((spec.positions, spec.hidden), lambda rows: rows[first:], table)


def tables(
    checkpoint: Checkpoint,
    expected: Mapping[str, tuple[int, ...]],
    *,
    shared: bool,
    tied: bool,
    base: str,
) -> dict[str, Weight]:
    """The token tables and the output's.

    As in transformers, a table that the file holds is used, and one that it lacks is another's:
    the encoder's and the decoder's are one when `shared`, the decoder's and the output's when
    `tied`. Which of their names a file holds depends on what wrote it.
    """
    both, source, target = base + SHARED, base + ENCODER, base + DECODER
    decoder = ([both, source, target] if shared else [target]) + ([OUTPUT] if tied else [])
    names = {
        "encoder.embed.tokens": [source, *decoder] if shared else [source],
        "decoder.embed.tokens": [target, *decoder],
        "output.weight": [OUTPUT, *decoder] if tied else [OUTPUT],
    }
    state: dict[str, Weight] = {}
    for table, candidates in names.items():
        held = [name for name in candidates if name in checkpoint]
        # Without any, the error names the table that published files hold.
        state[table] = checkpoint.take((held or candidates[1:] or candidates)[0], *expected[table])
    return state
