"""What changes the scores of tokens before one is chosen, run inside the engine's step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoding import _C
from decoding.batching import Array, Rows, check_ids
from decoding.config import GenerationConfig


def wanted(config: GenerationConfig) -> bool:
    """Whether an option asks for more than the rules that every search obeys (rules.py)."""
    return (
        config.guidance_scale != 1
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


def check(config: GenerationConfig, vocab: int) -> None:
    """Raises ValueError for ids that the decoder has no token for. vocab: those that it has."""
    for word, _ in config.sequence_bias:
        check_ids("sequence_bias", word, vocab)
    for word in config.bad_words_ids:
        check_ids("bad_words_ids", word, vocab)
    check_ids("forced_eos_token_id", config.forced_eos_token_id, vocab)
    check_ids("suppress_tokens", config.suppress_tokens, vocab)
    check_ids("begin_suppress_tokens", config.begin_suppress_tokens, vocab)


def controls(
    config: GenerationConfig,
    min_new: int,
    vocab: int,
    prompt: Rows,
    source: Rows | None,
    chosen: Array | None = None,
) -> _C.Controls:
    """For the engine: the options, and the texts that they look into.

    min_new: tokens before an EOS may come. vocab: of the decoder; an EOS beyond it never comes.
    prompt, source: of the whole call, padding included; without an encoder the prompt is the
    source, as in Hugging Face. chosen: the sentences of a sub-batch, int64 [n]; None: all.
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
        prompt=table(prompt, chosen),
        prompt_first=first_columns(prompt, chosen),
        source=table(prompt if source is None else source, chosen),
    )


def bad_words(config: GenerationConfig) -> list[Sequence[int]]:
    """Without those that are nothing but an EOS: Hugging Face drops them."""
    return [
        word
        for word in config.bad_words_ids
        if not (len(word) == 1 and word[0] in config.eos_token_id)
    ]


def table(rows: Rows, chosen: Array | None) -> Tensor:
    """int32 [n, W], as the caller gave them."""
    ids = rows.ids if chosen is None else rows.ids[chosen]
    return torch.from_numpy(np.ascontiguousarray(ids, np.int32))


def first_columns(rows: Rows, chosen: Array | None) -> list[int]:
    """The first column of each row that is not masked."""
    if rows.mask is None:
        return [0] * (len(rows) if chosen is None else len(chosen))
    first: list[int] = (rows.mask if chosen is None else rows.mask[chosen]).argmax(1).tolist()
    return first
