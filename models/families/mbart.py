"""mBART and mBART-50 (Liu et al. 2020, Tang et al. 2020) as transformers stores them."""

from __future__ import annotations

from functools import partial

from decoding.models.families import bart
from decoding.models.layouts import seq2seq

DEFAULTS = bart.DEFAULTS
LAYOUT = seq2seq.Layout(pre_norm=True, embed_norm=True, final_norm=True, first_position=2)
convert = partial(seq2seq.convert, layout=LAYOUT)
