"""frequency_penalty and presence_penalty in plain torch, as vLLM and OpenAI define them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor


class CountPenalties(LogitsProcessor):
    """Subtracts from a token's score `frequency` for each time that it was generated, and
    `presence` where it was at all. width: of the prompt, whose tokens do not count."""

    def __init__(self, width: int, frequency: float = 0.0, presence: float = 0.0) -> None:
        self.width, self.frequency, self.presence = width, frequency, presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        generated = input_ids[:, self.width :]
        counts = torch.zeros_like(scores).scatter_add_(
            1, generated, torch.ones_like(generated, dtype=scores.dtype)
        )
        return scores - self.frequency * counts - self.presence * (counts > 0)
