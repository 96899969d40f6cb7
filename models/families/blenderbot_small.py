"""Blenderbot's 90M model: transformers' BlenderbotSmallForConditionalGeneration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from decoding.models.layouts import seq2seq
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import Weight, computed

DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYOUT = seq2seq.Layout(pre_norm=False, embed_norm=True, final_norm=False)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """The decoder's embedding norm comes before its positions are added, so it is a function of the
    token alone: the table that the engine is given holds norm(row). scale_embedding is about the
    encoder's alone."""
    spec, state = seq2seq.convert(config, checkpoint, LAYOUT)
    decoder = spec.decoder

    def normed(rows: Array, gain: Array, bias: Array) -> Array:
        centred = rows - rows.mean(1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(1, keepdims=True) + decoder.eps)
        found: Array = centred / deviation * gain + bias
        return found

    state["decoder.embed.tokens"] = computed(
        (decoder.vocab, decoder.hidden),
        normed,
        state["decoder.embed.tokens"],
        state.pop("decoder.embed.norm.weight"),
        state.pop("decoder.embed.norm.bias"),
    )
    return replace(spec, decoder=replace(decoder, embed_scale=1.0, embed_norm=False)), state
