"""Search strategies: from options to what the engine runs. One file each."""

from __future__ import annotations

from decoding.generation.config import GenerationConfig
from decoding.generation.strategies import beam, contrastive, greedy, sampling
from decoding.generation.strategies.base import Strategy

__all__ = ["Strategy", "choose"]


def choose(config: GenerationConfig) -> Strategy:
    """The strategy that the options of a resolved configuration ask for."""
    if config.num_beams > 1:
        return beam.strategy(config)
    if config.contrastive:
        return contrastive.strategy(config)
    return sampling.strategy(config) if config.do_sample else greedy.strategy()
