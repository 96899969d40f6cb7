"""Blenderbot's 90M model: transformers' BlenderbotSmallForConditionalGeneration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.nn.functional as F

from decoding.models.layouts import seq2seq
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight, computed

DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 2,
}
LAYOUT = seq2seq.Layout(pre_norm=False, embed_norm=True, final_norm=False)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """The decoder's embedding norm comes before its positions are added, so it is a function of the
    token alone: the table that the engine is given holds norm(scale * row)."""
    spec, state = seq2seq.convert(config, checkpoint, LAYOUT)
    decoder = spec.decoder
    state["decoder.embed.tokens"] = computed(
        lambda rows, gain, bias: F.layer_norm(
            decoder.embed_scale * rows, (decoder.hidden,), gain, bias, decoder.eps
        ),
        state["decoder.embed.tokens"],
        state.pop("decoder.embed.norm.weight"),
        state.pop("decoder.embed.norm.bias"),
    )
    return replace(spec, decoder=replace(decoder, embed_scale=1.0, embed_norm=False)), state
