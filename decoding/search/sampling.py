"""Multinomial sampling from softmax(logits / temperature), cut to the top k and the top p."""

from __future__ import annotations

from typing import Any

import torch

from decoding import _C
from decoding.config import GenerationConfig
from decoding.reference import kept
from decoding.search.strategy import Strategy


def strategy(config: GenerationConfig) -> Strategy:
    """num_return_sequences copies of each sentence, each with random numbers of its own."""
    warpers: dict[str, Any] = {
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
    }
    copies = config.num_return_sequences
    return Strategy(
        _C.Sampling(),
        rows=copies,
        returned=copies,
        scores=lambda logits, _: torch.stack([kept(row, **warpers) for row in logits]).float(),
    )
