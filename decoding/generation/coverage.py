"""coverage_penalty: hypotheses ranked again by how much of the source they attend to."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from decoding.engine.request import EngineResults
from decoding.generation.attentions import of_hypotheses

LEAST = torch.finfo(torch.float32).tiny  # attention whose logarithm is still finite


def rank_by_coverage(results: EngineResults, lengths: Tensor, penalty: float) -> EngineResults:
    """Adds to each score penalty * the sum over source tokens of log(min(attention received, 1))
    (Wu et al. 2016, as CTranslate2 has it), and puts the best first again.

    results: with attentions. lengths: int64 [B], source tokens of each sentence.
    """
    assert results.attentions is not None
    received = of_hypotheses(results.attentions, results.parent_rows).sum(2)  # [B, K, S]
    counts = torch.arange(received.shape[2]) < lengths[:, None, None]
    logs = received.clamp(min=LEAST, max=1).log().where(counts, 0.0)
    scores = results.scores + penalty * logs.sum(2)
    order = scores.argsort(dim=1, descending=True, stable=True)

    def ordered(values: Tensor) -> Tensor:
        return values[torch.arange(len(order))[:, None], order]

    return replace(
        results,
        tokens=ordered(results.tokens),
        lengths=ordered(results.lengths),
        scores=ordered(scores),
        sums=ordered(results.sums),
        parent_rows=ordered(results.parent_rows),
    )
