"""How many tokens a row may have, and how many it must have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.common.arrays import Array
from decoding.common.warn import warn
from decoding.generation.config import GenerationConfig

DEFAULT_NEW = 20  # tokens, where nobody set a length: Hugging Face's number


@dataclass(frozen=True)
class Lengths:
    """Tokens that a row may have and those before an EOS may come, prompt not counted."""

    each: Array  # int64 [B], what the rows of each sentence may have
    min_new: int

    @property
    def max_new(self) -> int:
        return int(self.each.max())


def lengths(
    config: GenerationConfig,
    width: int,
    tokens: Array,
    positions: int,
    begun_within: int | None = None,
) -> Lengths:
    """From max_length, max_new_tokens, min_length and min_new_tokens.

    width: of the prompts, padding included. tokens: int64 [B], of each prompt, without padding.
    positions: of the model's decoder; begun_within: those that a row keeps to whose prompt does.
    Raises ValueError when there is no room.
    """
    each = np.empty(len(tokens), np.int64)
    if config.max_new_tokens is not None:
        each[:] = config.max_new_tokens
    elif config.max_length is not None:
        each[:] = config.max_length - width
        if config.max_length <= width:
            raise ValueError(
                f"max_length={config.max_length} counts the prompt, which is {width} tokens wide: "
                f"raise it above {width}, or pass max_new_tokens"
            )
    else:
        each[:] = min(DEFAULT_NEW, positions - config.contrastive - width)
    own: Array | int = positions - config.contrastive  # which reads the last token, too
    if begun_within is not None:
        own = np.where(tokens <= begun_within, begun_within - config.contrastive, own)
    room = own + 1 - tokens  # the last token is never read, so it needs no position
    least = int(each.min())
    if least <= 0 or (each > room).any():
        raise ValueError(no_room(each, room, width, tokens, np.broadcast_to(own, tokens.shape)))
    if config.min_new_tokens is not None:
        min_new = config.min_new_tokens
    else:
        min_new = max(0, config.min_length - width)
    if min_new > least:
        warn(f"no row can reach the minimum of {min_new} new tokens: they end at {least}")
    return Lengths(each, min_new)


def no_room(each: Array, room: Array, width: int, tokens: Array, positions: Array) -> str:
    """Why the rows have no room. room, positions: int64 [B], that each row may use."""
    if (np.minimum(each, room) <= 0).any():
        return (
            f"a prompt of {tokens.max()} tokens, {width} wide, leaves no room for new ones in the "
            f"model's {positions.max()} positions: shorten it"
        )
    row = int((each - room).argmax())
    return (
        f"{each[row]} new tokens behind a prompt of {tokens[row]} need "
        f"{tokens[row] + each[row] - 1} positions, the model has {positions[row]} for such a "
        f"prompt: pass max_new_tokens={room[row]} or less"
    )
