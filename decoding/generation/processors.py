"""Options that change the scores of tokens before one is selected, inside the engine's step."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoding.common.arrays import Array
from decoding.generation.batching import TokenBatch
from decoding.generation.config import GenerationConfig, Words, engine_options


def processors(config: GenerationConfig) -> dict[str, Any]:
    """The arguments of _C.Request that process logits."""
    start, factor = config.exponential_decay_length_penalty or (0, 1.0)
    return {
        **engine_options(config, "processor"),
        "bad_words": bad_words(config),
        "decay_start": start if factor != 1 else 0,
        "decay_factor": factor,
        "renormalize": config.renormalize_logits,
    }


def texts(prompt: TokenBatch, source: TokenBatch | None) -> dict[str, Any]:
    """The arguments of _C.Request that processors look into.

    prompt, source: of the sentences, padding included; without an encoder the prompt is the source,
    as in Hugging Face.
    """
    return {
        "prompt": table(prompt),
        "prompt_first": prompt.first_columns,
        "source": table(prompt if source is None else source),
    }


def bad_words(config: GenerationConfig) -> Words:
    """Without those that are nothing but an EOS: Hugging Face drops them."""
    return [
        word
        for word in config.bad_words_ids
        if not (len(word) == 1 and word[0] in config.eos_token_id)
    ]


def table(batch: TokenBatch) -> Array:
    """int32 [B, W], as the caller gave them."""
    return np.ascontiguousarray(batch.ids, np.int32)
