"""What each sentence of a call has of its own: csrc/kernels/search/sentence.h, in its layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from decoding.generation.batching import Array
from decoding.generation.config import GenerationConfig
from decoding.generation.lengths import Lengths

SENTENCE = np.dtype(
    [
        ("seed", np.uint64),
        ("random_first", np.int32),
        ("max_new", np.int32),
        ("forced_first", np.int32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
    ]
)


def sentence_rules(
    config: GenerationConfig, lengths: Lengths, width: int, items: Array, rows: int
) -> Array:
    """SENTENCE [n]. width: of the prompt; items: int64 [n], the sentences' places in the call;
    rows: of each sentence while it runs. Per-row options have n values.

    One seed serves all rows, each with a row word of its own; a sequence has one for each sentence,
    whose draws then do not depend on its place in the call.
    """
    table = np.empty(len(items), SENTENCE)
    seeds: Any = config.seed or 0
    table["seed"] = np.asarray(seeds, np.uint64)
    table["random_first"] = 0 if np.ndim(seeds) else items * rows
    table["max_new"] = lengths.each
    forced: Any = -1 if config.forced_bos_token_id is None else config.forced_bos_token_id
    table["forced_first"] = forced if width == 1 else -1
    table["top_k"] = config.top_k if config.do_sample else 0
    table["temperature"] = config.temperature if config.do_sample else 1.0
    table["top_p"] = config.top_p if config.do_sample else 1.0
    return table


def drawn_seed() -> int:
    """64 bits of torch's default generator: torch.manual_seed repeats a program, calls differ."""
    return int(torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)) % 2**64
