"""Search strategies: from options to what the engine runs. One file each."""

from __future__ import annotations

from dataclasses import replace

from decoding.config import GenerationConfig
from decoding.search import beam, greedy, sampling
from decoding.search.strategy import Strategy

__all__ = ["Strategy", "choose"]


def choose(config: GenerationConfig) -> Strategy:
    """The strategy that the options of a resolved configuration ask for."""
    if config.num_beams > 1:
        chosen = beam.strategy(config)
    else:
        chosen = sampling.strategy(config) if config.do_sample else greedy.strategy()
    if not config.renormalize_logits:
        return chosen
    return replace(chosen, scores=lambda *step: chosen.scores(*step).log_softmax(-1))
