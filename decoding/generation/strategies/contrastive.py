"""Contrastive search: of the top_k most probable tokens the one that is least like its context."""

from __future__ import annotations

from decoding import _C
from decoding.generation.config import GenerationConfig
from decoding.generation.strategies.base import Strategy


def strategy(config: GenerationConfig) -> Strategy:
    """Each candidate takes a row."""
    assert isinstance(config.top_k, int)  # else it is no contrastive search
    return Strategy(
        _C.Contrastive(),
        rows_per_sentence=config.top_k,
        returned=1,
        max_finished=1,
        options={"penalty_alpha": config.penalty_alpha},
    )
