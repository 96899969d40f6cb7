"""How much each generated token attends to each token of the source."""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.generation.config import GenerationConfig


def check_attentions(config: GenerationConfig, encoder: bool) -> None:
    """Raises where a model without an encoder is asked for attention to a source."""
    if encoder:
        return
    if config.output_attentions:
        raise NotImplementedError(
            "output_attentions keeps attention to a source, which a decoder-only model does not "
            "have: pass output_attentions=False"
        )
    if config.coverage_penalty > 0:
        raise ValueError(
            "coverage_penalty counts attention to a source, which a decoder-only model does not "
            "have: pass coverage_penalty=0"
        )


def of_hypotheses(attentions: Tensor, parent_rows: Tensor) -> Tensor:
    """The attention of each hypothesis's tokens: float32 [B, K, longest, S], 0 after its end.

    attentions: float32 [steps, B * K, S], of each step's rows. parent_rows: int [B, K, G], the row
    of its step that each token extended; -1 after a hypothesis's end.
    """
    longest = min(len(attentions), parent_rows.shape[2])
    parent_rows = parent_rows[..., :longest]
    found = attentions[torch.arange(longest), parent_rows.clamp(min=0).long()]
    return found.where((parent_rows >= 0)[..., None], 0.0)


def in_columns(attentions: Tensor, mask: Tensor | None, width: int) -> Tensor:
    """[steps, B * K, width]: masked tokens get 0.

    attentions: [steps, B * K, S], of the tokens that count, one after the other. mask: bool
    [B, width], which ones those are; None: all.
    """
    if mask is None:
        return attentions[..., :width]
    every = attentions.new_zeros(*attentions.shape[:2], width)
    rows = attentions.shape[1] // len(mask)
    for b, counts in enumerate(mask):
        own = slice(b * rows, (b + 1) * rows)
        every[:, own, counts] = attentions[:, own, : int(counts.sum())]
    return every
