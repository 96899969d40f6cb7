"""Beam search: the num_beams best rows go on; finished ones compete by S / G^length_penalty."""

from __future__ import annotations

from decoding import _C
from decoding.generation.config import GenerationConfig
from decoding.generation.strategies.base import Search, Strategy
from decoding.generation.strategies.constraints import constraint_table

STOPPING = {False: "no", True: "yes", "never": "never"}


def strategy(config: GenerationConfig) -> Strategy:
    """With groups, diverse beam search: each group is a beam search of its own. With
    force_words_ids, constrained beam search: every row holds those words."""
    # patience has an effect with early_stopping=True alone.
    patience = config.patience if config.early_stopping is True else 1
    max_finished = round(config.num_beams * patience)
    beam = _C.Beam(max_finished=max_finished, samples=config.do_sample)
    search: Search = beam
    if config.num_beam_groups > 1:
        search = _C.Diverse(beam, groups=config.num_beam_groups)
    if config.force_words_ids:
        table = constraint_table(config.force_words_ids)
        search = _C.Constrained(
            beam, depths=table.depths, first_edge=table.first_edge, tokens=table.tokens
        )
    return Strategy(
        search,
        rows_per_sentence=config.num_beams,
        returned=config.num_return_sequences,
        competing=True,
        max_finished=max_finished,
        options={
            "length_penalty": config.length_penalty,
            "length_normalization": config.length_normalization or "power",
            "early_stopping": STOPPING[config.early_stopping],
            "diversity_rate": config.diversity_rate,
            "diversity_penalty": config.diversity_penalty,
        },
    )
