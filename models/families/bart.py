"""BART (Lewis et al. 2020) as transformers' BartForConditionalGeneration stores it."""

from __future__ import annotations

from functools import partial

from decoding.models.layouts import seq2seq

DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
LAYOUT = seq2seq.Layout(pre_norm=False, embed_norm=True, final_norm=False, first_position=2)
convert = partial(seq2seq.convert, layout=LAYOUT)
