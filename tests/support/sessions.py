"""Calls of a model whose session is looked into."""

from __future__ import annotations

from typing import Any

import torch

import decoding
from decoding import Limits

LIMITS = Limits(batch=2, beams=3, source=6, prompt=2, target=8)


def tokens(batch: int = 2, width: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randint(12, 40, (batch, width), generator=torch.Generator().manual_seed(seed))


def run(model: decoding.Model, ids: torch.Tensor, **options: Any) -> Any:
    """Beams that end at various lengths; sequences and scores."""
    defaults: dict[str, Any] = {
        "num_beams": 3,
        "max_new_tokens": 8,
        "attention_mask": torch.ones_like(ids),
        "return_dict_in_generate": True,
        "output_sequences_scores": True,
    }
    return model.generate(ids, **(defaults | options))


def same(a: Any, b: Any, device: str = "cpu") -> bool:
    """To the bit on the CPU. On a GPU the order of a sum may depend on the number of rows."""
    slack = 0.0 if device == "cpu" else 1e-5
    return torch.equal(a.sequences, b.sequences) and torch.allclose(
        a.sequences_scores, b.sequences_scores, rtol=slack, atol=slack
    )
