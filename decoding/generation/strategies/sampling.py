"""Multinomial sampling from what the filters leave, without beams or inside them."""

from __future__ import annotations

from typing import Any

from decoding import _C
from decoding.generation.config import OPTIONS, GenerationConfig, engine_options
from decoding.generation.strategies.base import Strategy


def strategy(config: GenerationConfig) -> Strategy:
    """num_return_sequences copies of each sentence, each with random numbers of its own."""
    copies = config.num_return_sequences
    return Strategy(_C.Sampling(), rows_per_sentence=copies, returned=copies)


def filters(config: GenerationConfig) -> dict[str, Any]:
    """The arguments of _C.Request that filter scores before a token is drawn."""
    if not config.do_sample:
        return {}
    # Beams that end leave others to go on with.
    keep = max(2, len(config.eos_token_id) + 1) if config.num_beams > 1 else 1
    return {**engine_options(config, "filter"), "min_tokens_to_keep": keep}


def is_filter(config: GenerationConfig, name: str) -> bool:
    """Whether an option is one of filters()."""
    return config.do_sample and OPTIONS[name]["engine"] == "filter"
