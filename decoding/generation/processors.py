"""Options that change the scores of tokens before one is selected, inside the engine's step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoding import _C
from decoding.generation.batching import TokenBatch
from decoding.generation.config import GenerationConfig


def wanted(config: GenerationConfig) -> bool:
    """Whether an option asks for more than lengths, end tokens, bans and forced tokens."""
    return (
        config.guidance_scale != 1
        or bool(config.force_words_ids)  # which looks up the scores of their tokens
        or config.encoder_repetition_penalty != 1
        or config.repetition_penalty != 1
        or config.no_repeat_ngram_size > 0
        or config.encoder_no_repeat_ngram_size > 0
        or config.remove_invalid_values
        or config.exponential_decay_length_penalty is not None
        or bool(config.sequence_bias)
        or any(len(word) > 1 for word in config.bad_words_ids)
        or bool(config.suppress_tokens)
        or bool(config.begin_suppress_tokens)
    )


def processors(
    config: GenerationConfig,
    min_new: int,
    vocab: int,
    prompt: TokenBatch,
    source: TokenBatch | None,
) -> _C.Controls:
    """For the engine: the options, and the texts that they look into.

    min_new: tokens before an EOS may come. vocab: of the decoder; an EOS beyond it never comes.
    prompt, source: of the sentences, padding included; without an encoder the prompt is the source,
    as in Hugging Face.
    """
    start, factor = config.exponential_decay_length_penalty or (0, 1.0)
    return _C.Controls(
        guidance_scale=config.guidance_scale,
        sequence_bias=config.sequence_bias,
        encoder_repetition_penalty=config.encoder_repetition_penalty,
        repetition_penalty=config.repetition_penalty,
        no_repeat_ngram_size=config.no_repeat_ngram_size,
        encoder_no_repeat_ngram_size=config.encoder_no_repeat_ngram_size,
        bad_words=bad_words(config),
        eos=[id for id in sorted(set(config.eos_token_id)) if 0 <= id < vocab],
        min_new=min_new,
        forced_last=config.forced_eos_token_id,
        remove_invalid_values=config.remove_invalid_values,
        decay_start=start,
        decay_factor=factor,
        suppress_tokens=config.suppress_tokens,
        begin_suppress_tokens=config.begin_suppress_tokens,
        renormalize=config.renormalize_logits,
        prompt=table(prompt),
        prompt_first=prompt.first_columns.tolist(),
        source=table(prompt if source is None else source),
    )


def bad_words(config: GenerationConfig) -> list[Sequence[int]]:
    """Without those that are nothing but an EOS: Hugging Face drops them."""
    return [
        word
        for word in config.bad_words_ids
        if not (len(word) == 1 and word[0] in config.eos_token_id)
    ]


def table(batch: TokenBatch) -> Tensor:
    """int32 [B, W], as the caller gave them."""
    return torch.from_numpy(np.ascontiguousarray(batch.ids, np.int32))
