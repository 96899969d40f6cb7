"""Tokens that a shortlist of the vocabulary must hold, whatever the source."""

from __future__ import annotations

from itertools import chain
from typing import Any

from decoding.generation.config import GenerationConfig
from decoding.generation.rules import fill_id


def needed_ids(config: GenerationConfig, vocab: int) -> set[int]:
    """Special tokens, and those that an option asks for. vocab: ids that the decoder has; a special
    token beyond it never comes."""
    first: Any = config.forced_bos_token_id
    words = [word for word, _ in config.sequence_bias]
    ids = chain(
        config.eos_token_id,
        config.decoder_start_token_id,
        config.forced_eos_token_id,
        first if isinstance(first, tuple) else [first],
        [config.bos_token_id, fill_id(config)],
        *words,
        *chain.from_iterable(config.force_words_ids),
    )
    return {id for id in ids if id is not None and 0 <= id < vocab}
