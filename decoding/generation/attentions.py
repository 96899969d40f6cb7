"""How much each generated token attends to each token of the source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from decoding.engine.session import Results
    from decoding.generation.config import GenerationConfig

LEAST = torch.finfo(torch.float32).tiny  # attention whose logarithm is still finite


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


def along(attentions: Tensor, slots: Tensor) -> Tensor:
    """What the tokens of hypotheses attend to: float32 [B, K, longest, S], 0 behind their ends.

    attentions: float32 [steps, B * K, S], of each step's rows. slots: int [B, K, G], the row of its
    step that each token extended; -1 behind a hypothesis's end.
    """
    longest = min(len(attentions), slots.shape[2])
    slots = slots[..., :longest]
    found = attentions[torch.arange(longest), slots.clamp(min=0).long()]
    return found.where((slots >= 0)[..., None], 0.0)


def in_columns(attentions: Tensor, mask: Tensor | None, width: int) -> Tensor:
    """[steps, B * K, width]: tokens that were masked get 0.

    attentions: [steps, B * K, S], of the tokens that count, one behind the other. mask: bool
    [B, width], which ones those are; None: all.
    """
    if mask is None:
        return attentions[..., :width]
    every = attentions.new_zeros(*attentions.shape[:2], width)
    rows = attentions.shape[1] // len(mask)
    for b, counts in enumerate(mask):
        place = slice(b * rows, (b + 1) * rows)
        every[:, place, counts] = attentions[:, place, : int(counts.sum())]
    return every


def covering(found: Results, lengths: Tensor, penalty: float) -> Results:
    """The same hypotheses, whose scores also count how much of the source they attend to (Wu et al.
    2016, as CTranslate2 has it): + penalty * the sum over source tokens of log(min(attention
    received, 1)). Best first again.

    found: with attentions. lengths: int64 [B], source tokens of each sentence.
    """
    assert found.attentions is not None
    received = along(found.attentions, found.slots).sum(2)  # [B, K, S]
    counts = torch.arange(received.shape[2]) < lengths[:, None, None]
    logs = received.clamp(min=LEAST, max=1).log().where(counts, 0.0)
    scores = found.scores + penalty * logs.sum(2)
    order = scores.argsort(dim=1, descending=True, stable=True)

    def moved(values: Tensor) -> Tensor:
        return values[torch.arange(len(order))[:, None], order]

    return replace(
        found,
        tokens=moved(found.tokens),
        lengths=moved(found.lengths),
        scores=moved(scores),
        sums=moved(found.sums),
        slots=moved(found.slots),
    )
