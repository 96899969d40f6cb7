"""Multinomial sampling from what the filters leave, without beams or inside them."""

from __future__ import annotations

from decoding import _C
from decoding.generation.config import GenerationConfig
from decoding.generation.strategies.base import Strategy


def strategy(config: GenerationConfig) -> Strategy:
    """num_return_sequences copies of each sentence, each with random numbers of its own."""
    copies = config.num_return_sequences
    return Strategy(_C.Sampling(), rows_per_sentence=copies, returned=copies)


def filters(config: GenerationConfig, *, processed: bool) -> _C.Warpers | None:
    """For the engine; None where nothing is drawn, and where temperature, top_k and top_p say it
    all: sampling from logits, if they are not `processed`, then does that itself."""
    if not config.do_sample:
        return None
    others = (
        config.top_h is not None
        or config.min_p > 0
        or config.typical_p < 1
        or config.epsilon_cutoff > 0
        or config.eta_cutoff > 0
    )
    if not (others or processed or config.num_beams > 1):
        return None
    keep = max(2, len(config.eos_token_id) + 1) if config.num_beams > 1 else 1
    return _C.Warpers(
        top_h=config.top_h or 0.0,
        min_p=config.min_p,
        typical_p=config.typical_p,
        epsilon=config.epsilon_cutoff,
        eta=config.eta_cutoff,
        keep=keep,
    )
