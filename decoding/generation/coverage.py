"""coverage_penalty: hypotheses ranked again by how much of the source they attend to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from decoding.common.arrays import Array
from decoding.engine.request import EngineResults
from decoding.generation.kept_steps import of_hypotheses

LEAST = torch.finfo(torch.float32).tiny  # attention whose logarithm is still finite


def rank_by_coverage(results: EngineResults, lengths: Array, penalty: float) -> EngineResults:
    """Adds to each score penalty * the sum over source tokens of log(min(attention received, 1))
    (Wu et al. 2016, as CTranslate2 has it), and puts the best first again.

    results: with attentions. lengths: int [B], source tokens of each sentence.
    """
    assert results.attentions is not None
    rows = torch.from_numpy(results.parent_rows)
    received = of_hypotheses(results.attentions, rows).sum(2)  # [B, K, S]
    counts = torch.arange(received.shape[2]) < torch.from_numpy(lengths)[:, None, None]
    logs = received.clamp(min=LEAST, max=1).log().where(counts, 0.0)
    scores = torch.from_numpy(results.scores) + penalty * logs.sum(2)
    order = scores.argsort(dim=1, descending=True, stable=True).numpy()

    def ordered(values: Array) -> Array:
        found: Array = values[np.arange(len(order))[:, None], order]
        return found

    return replace(
        results,
        tokens=ordered(results.tokens),
        lengths=ordered(results.lengths),
        scores=ordered(scores.numpy()),
        sums=ordered(results.sums),
        parent_rows=ordered(results.parent_rows),
    )
