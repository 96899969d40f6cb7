"""Blenderbot (Roller et al. 2021): transformers' BlenderbotForConditionalGeneration."""

from __future__ import annotations

from functools import partial

from decoding.models.layouts import seq2seq

DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYOUT = seq2seq.Layout(pre_norm=True, embed_norm=False, final_norm=True)
convert = partial(seq2seq.convert, layout=LAYOUT)
