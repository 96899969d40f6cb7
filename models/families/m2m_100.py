"""M2M-100 and NLLB-200 (Fan et al. 2021, NLLB Team 2022) as transformers stores them.

There a pad token takes no position, even one that is generated or not masked; here it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from decoding.models.layouts import seq2seq
from decoding.models.layouts.options import integer
from decoding.models.layouts.positions import fairseq_sinusoids
from decoding.models.spec import ModelSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = {
    "activation_function": "relu",
    "max_position_embeddings": 1024,
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    positions = partial(fairseq_sinusoids, first=integer(config, "pad_token_id", 0) + 1)
    layout = seq2seq.Layout(
        pre_norm=True, embed_norm=False, final_norm=True, sinusoids=positions, computed=True
    )
    return seq2seq.convert(config, checkpoint, layout)
