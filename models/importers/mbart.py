"""mBART and mBART-50 (Liu et al. 2020, Tang et al. 2020) as transformers stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from decoding.models.checkpoint import Checkpoint
from decoding.models.importers import seq2seq
from decoding.models.spec import ModelSpec

DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}
LAYOUT = seq2seq.Layout(pre_norm=True, embed_norm=True, final_norm=True, first_position=2)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Tensor]]:
    return seq2seq.convert(config, checkpoint, LAYOUT)
