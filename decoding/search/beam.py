"""Beam search: the num_beams best rows go on; finished ones compete by S / G^length_penalty."""

from __future__ import annotations

from decoding import _C
from decoding.config import GenerationConfig
from decoding.search.strategy import Strategy

STOPPING = {False: "no", True: "yes", "never": "never"}


def beam(config: GenerationConfig) -> Strategy:
    search = _C.Beam(
        length_penalty=config.length_penalty, early_stopping=STOPPING[config.early_stopping]
    )
    return Strategy(search, config.num_beams, config.num_return_sequences, beams=True)
