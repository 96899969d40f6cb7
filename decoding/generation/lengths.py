"""How many tokens a row may have, and how many it must have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.common.arrays import Array
from decoding.common.warn import warn
from decoding.generation.batching import TokenBatch
from decoding.generation.config import GenerationConfig

DEFAULT_NEW = 20  # tokens, where nobody set a length: Hugging Face's number


@dataclass(frozen=True)
class Lengths:
    """Tokens that a row may have and those before an EOS may come, prompt not counted."""

    max_new: int | tuple[int, ...]  # where sentences differ, what the rows of each may have
    min_new: int


def lengths(
    config: GenerationConfig, prompt: TokenBatch, positions: int, begun_within: int | None = None
) -> Lengths:
    """From max_length, max_new_tokens, min_length and min_new_tokens.

    positions: of the model's decoder; begun_within: those that a row keeps to whose prompt does.
    Raises ValueError when there is no room.
    """
    most = most_new(config, prompt.width, positions)
    shortest, longest = (min(most), max(most)) if isinstance(most, tuple) else (most, most)
    reads_last = int(config.contrastive)  # which else needs no position
    positions, kept = positions - reads_last, (begun_within or positions) - reads_last
    if shortest <= 0 or prompt.longest + longest - 1 > min(positions, kept):
        own = np.full(len(prompt), positions)
        if begun_within is not None:
            own[prompt.lengths <= begun_within] = kept
        check_room(np.zeros_like(own) + most, prompt.width, prompt.lengths, own)
    if config.min_new_tokens is not None:
        min_new = config.min_new_tokens
    else:
        min_new = max(0, config.min_length - prompt.width)
    if min_new > shortest:
        warn(f"no row can reach the minimum of {min_new} new tokens: they end at {shortest}")
    return Lengths(most, min_new)


def most_new(config: GenerationConfig, width: int, positions: int) -> int | tuple[int, ...]:
    """The most new tokens: of each row, or one number for all. width: of the prompts, padding
    included."""
    if config.max_new_tokens is not None:
        own = config.max_new_tokens
        return own if isinstance(own, int) else tuple(own)
    if config.max_length is None:
        return min(DEFAULT_NEW, positions - config.contrastive - width)
    if config.max_length <= width:
        raise ValueError(
            f"max_length={config.max_length} counts the prompt, which is {width} tokens wide: "
            f"raise it above {width}, or pass max_new_tokens"
        )
    return config.max_length - width


def check_room(each: Array, width: int, tokens: Array, positions: Array) -> None:
    """each: int64 [B], new tokens of each row. tokens: int64 [B], of each prompt, without padding.
    positions: int64 [B], that each row may use."""
    room = positions - tokens + 1  # the last token is never read, so it needs no position
    if (np.minimum(each, room) <= 0).any():
        raise ValueError(
            f"a prompt of {tokens.max()} tokens, {width} wide, leaves no room for new ones in the "
            f"model's {positions.max()} positions: shorten it"
        )
    if (each > room).any():
        row = int((each - room).argmax())
        raise ValueError(
            f"{each[row]} new tokens behind a prompt of {tokens[row]} need "
            f"{tokens[row] + each[row] - 1} positions, the model has {positions[row]} for such a "
            f"prompt: pass max_new_tokens={room[row]} or less"
        )
