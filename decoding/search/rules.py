"""What every search obeys: lengths, end tokens, banned and forced tokens."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from decoding import _C
from decoding.batching import check_ids
from decoding.config import GenerationConfig

DEFAULT_NEW = 20  # tokens, where nobody set a length: Hugging Face's number


@dataclass(frozen=True)
class Lengths:
    """Tokens that a row may have and those before an EOS may come, prompt not counted."""

    max_new: int
    min_new: int


def lengths(config: GenerationConfig, width: int, longest: int, positions: int) -> Lengths:
    """From max_length, max_new_tokens, min_length and min_new_tokens.

    width: of the prompt, padding included. longest: tokens of the longest prompt, without padding.
    positions: of the model's decoder. Raises ValueError when there is no room.
    """
    if config.max_new_tokens is not None:
        max_new = config.max_new_tokens
    elif config.max_length is not None:
        max_new = config.max_length - width
        if max_new <= 0:
            raise ValueError(
                f"max_length={config.max_length} counts the prompt, which is {width} tokens wide: "
                f"raise it above {width}, or pass max_new_tokens"
            )
    else:
        max_new = min(DEFAULT_NEW, positions - width)
    room = positions - longest + 1  # the last token is never read, so it needs no position
    if min(max_new, room) <= 0:
        raise ValueError(
            f"a prompt of {longest} tokens, {width} wide, leaves no room for new ones in the "
            f"model's {positions} positions: shorten it"
        )
    if max_new > room:
        raise ValueError(
            f"{max_new} new tokens behind a prompt of {longest} need {longest + max_new - 1} "
            f"positions, the model has {positions}: pass max_new_tokens={room} or less"
        )
    if config.min_new_tokens is not None:
        min_new = config.min_new_tokens
    else:
        min_new = max(0, config.min_length - width)
    if min_new > max_new:
        warnings.warn(
            f"no row can reach the minimum of {min_new} new tokens: they end at {max_new}",
            UserWarning,
            stacklevel=4,
        )
    return Lengths(max_new, min_new)


def rules(config: GenerationConfig, lengths: Lengths, vocab: int) -> _C.Rules:
    """The engine's rules. vocab: ids that the decoder has.

    Raises ValueError for forced and banned ids that the model has no token for. An EOS that it has
    no token for never comes.
    """
    forced_first = [] if config.forced_bos_token_id is None else [config.forced_bos_token_id]
    check_ids("forced_bos_token_id", forced_first, vocab)
    check_ids("forced_eos_token_id", config.forced_eos_token_id, vocab)
    banned = {id for (id,) in config.bad_words_ids}
    check_ids("bad_words_ids", list(banned), vocab)
    pad = fill_id(config)
    return _C.Rules(
        max_new=lengths.max_new,
        min_new=lengths.min_new,
        eos=[id for id in sorted(set(config.eos_token_id)) if 0 <= id < vocab],
        pad=pad if pad is not None and 0 <= pad < vocab else 0,  # ended rows compute, unread
        banned=sorted(banned - set(config.eos_token_id)),
        forced_last=sorted(set(config.forced_eos_token_id)),
        renormalize=config.renormalize_logits,
    )


def fill_id(config: GenerationConfig) -> int | None:
    """pad_token_id, for which the first EOS stands in."""
    if config.pad_token_id is not None:
        return config.pad_token_id
    return config.eos_token_id[0] if config.eos_token_id else None
