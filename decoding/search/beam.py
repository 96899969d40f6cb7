"""Beam search: the num_beams best rows go on; finished ones compete by S / G^length_penalty."""

from __future__ import annotations

from decoding import _C
from decoding.config import GenerationConfig
from decoding.search.strategy import Strategy

STOPPING = {False: "no", True: "yes", "never": "never"}


def strategy(config: GenerationConfig) -> Strategy:
    search = _C.Beam(
        length_penalty=config.length_penalty, early_stopping=STOPPING[config.early_stopping]
    )
    return Strategy(
        search,
        rows=config.num_beams,
        returned=config.num_return_sequences,
        scores=lambda logits, lse: logits - lse[:, None],
        beams=True,
    )
