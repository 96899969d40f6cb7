"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020) as transformers' RobertaModel and
XLMRobertaModel store them: BERT, with positions numbered behind the pad token.

There a pad token takes no position, even one that is not masked; here it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from decoding.models.checkpoint import Checkpoint
from decoding.models.importers import bert, encoder
from decoding.models.importers.options import whole
from decoding.models.spec import EncoderSpec

DEFAULTS = bert.DEFAULTS | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[EncoderSpec, dict[str, Tensor]]:
    first = whole(config, "pad_token_id") + 1
    layout = encoder.Layout(
        "roberta.", "encoder.layer", bert.PARTS, first_position=first, typed=True
    )
    return encoder.convert(checkpoint, bert.stack_spec(config, first_position=first), layout)
