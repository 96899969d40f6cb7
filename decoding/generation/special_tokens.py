"""End, padding and forced tokens, and the ids in other options."""

from __future__ import annotations

from itertools import chain
from typing import Any

from decoding.generation.batching import check_ids
from decoding.generation.config import GenerationConfig


def special_tokens(config: GenerationConfig, vocab: int) -> dict[str, Any]:
    """The arguments of _C.Request that end and fill rows. vocab: ids that the decoder has."""
    pad = fill_id(config)
    return {
        "eos": end_ids(config, vocab),
        "pad": pad if pad is not None and 0 <= pad < vocab else 0,  # ended rows compute, unread
        "forced_last": sorted(set(config.forced_eos_token_id)),
    }


def end_ids(config: GenerationConfig, vocab: int) -> list[int]:
    """The EOS ids that the model has a token for. Repeated and foreign ones count as candidates of
    beam search in Hugging Face: the first one is repeated for each of them."""
    valid = sorted({id for id in config.eos_token_id if 0 <= id < vocab})
    return valid + valid[:1] * (len(config.eos_token_id) - len(valid))


def check_tokens(config: GenerationConfig, vocab: int) -> None:
    """Raises ValueError for an id in an option that the model has no token for."""
    first: Any = config.forced_bos_token_id
    if first is not None:
        check_ids("forced_bos_token_id", first if isinstance(first, tuple) else [first], vocab)
    for name in ("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        check_ids(name, getattr(config, name), vocab)
    words = {
        "bad_words_ids": config.bad_words_ids,
        "sequence_bias": [word for word, _ in config.sequence_bias],
        "force_words_ids": chain.from_iterable(config.force_words_ids),
    }
    for name, of_option in words.items():
        check_ids(name, [*chain.from_iterable(of_option)], vocab)


def fill_id(config: GenerationConfig) -> int | None:
    """pad_token_id; where there is none, the first EOS."""
    if config.pad_token_id is not None:
        return config.pad_token_id
    return config.eos_token_id[0] if config.eos_token_id else None


def shortlist_ids(config: GenerationConfig, vocab: int) -> set[int]:
    """Ids that a shortlist holds whatever the source: special tokens, and those that an option asks
    for. vocab: ids that the decoder has; a special token beyond it never comes."""
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
