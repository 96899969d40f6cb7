"""Pegasus (Zhang et al. 2020) as transformers' PegasusForConditionalGeneration stores it."""

from __future__ import annotations

from functools import partial

from decoding.models.layouts import seq2seq
from decoding.models.layouts.positions import sinusoids

DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
LAYOUT = seq2seq.Layout(pre_norm=True, embed_norm=False, final_norm=True, sinusoids=sinusoids)
convert = partial(seq2seq.convert, layout=LAYOUT)
