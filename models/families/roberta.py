"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020) as transformers' RobertaModel and
XLMRobertaModel store them: BERT, with positions that are counted by the tokens before, in a table
whose first row in use is the pad token's, at its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoding.models.families import bert
from decoding.models.layouts import encoder
from decoding.models.layouts.options import integer, size
from decoding.models.spec import EncoderSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight

DEFAULTS = bert.DEFAULTS | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[EncoderSpec, dict[str, Weight]]:
    pad = integer(config, "pad_token_id", 0, size(config, "max_position_embeddings") - 2)
    layout = encoder.Layout("roberta.", "encoder.layer", bert.PARTS, first_position=pad, typed=True)
    stack = bert.stack_spec(config, first_position=pad)
    spec, state = encoder.convert(checkpoint, stack, layout)
    return replace(spec, pad=pad), state
