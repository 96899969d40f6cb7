"""Marian (Junczys-Dowmunt et al. 2018) as transformers' MarianMTModel stores it.

The flags normalize_before, normalize_embedding and add_final_layer_norm mean what they did when
these models were published (transformers 3, where Marian was a BART): pre-norm, a norm behind the
embedding, a norm behind the last layer. Today's transformers ignores them; published models have
all three off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.models.layouts import seq2seq
from decoding.models.layouts.options import flag, must_be, size
from decoding.models.layouts.positions import sinusoids
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    must_be(config, "static_position_embeddings", True)
    shared = flag(config, "share_encoder_decoder_embeddings")
    own = not shared and config.get("decoder_vocab_size") is not None
    layout = seq2seq.Layout(
        pre_norm=flag(config, "normalize_before"),
        embed_norm=flag(config, "normalize_embedding"),
        final_norm=flag(config, "add_final_layer_norm"),
        sinusoids=sinusoids,
        shared=shared,
        target_vocab=size(config, "decoder_vocab_size") if own else None,
    )
    return seq2seq.convert(config, checkpoint, layout)
