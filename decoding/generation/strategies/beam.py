"""Beam search: the num_beams best rows go on; finished ones compete by S / G^length_penalty."""

from __future__ import annotations

from decoding import _C
from decoding.generation.config import GenerationConfig
from decoding.generation.constraints import phrase_table
from decoding.generation.strategies.base import Search, Strategy

STOPPING = {False: "no", True: "yes", "never": "never"}


def strategy(config: GenerationConfig) -> Strategy:
    """With groups, diverse beam search: each group is a beam search of its own. With
    force_words_ids, constrained beam search: every row holds those words."""
    waits = config.early_stopping is True  # who patience is for
    places = round(config.num_beams * config.patience) if waits else config.num_beams
    beam = _C.Beam(
        length_penalty=config.length_penalty,
        gnmt=config.length_normalization == "gnmt",
        early_stopping=STOPPING[config.early_stopping],
        capacity=places,
        diversity_rate=config.diversity_rate,
        draws=config.do_sample,
    )
    search: Search = beam
    if config.num_beam_groups > 1:
        search = _C.Diverse(beam, groups=config.num_beam_groups, penalty=config.diversity_penalty)
    if config.force_words_ids:
        table = phrase_table(config.force_words_ids)
        search = _C.Constrained(
            beam, heights=table.heights, first_edge=table.first_edge, tokens=table.tokens
        )
    return Strategy(
        search,
        rows=config.num_beams,
        returned=config.num_return_sequences,
        beams=True,
        places=places,
    )
