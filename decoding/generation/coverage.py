"""coverage_penalty: hypotheses ranked again by how much of the source they attend to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decoding.common.arrays import Array
from decoding.engine.request import EngineResults
from decoding.generation.kept_steps import of_hypotheses

LEAST = np.finfo(np.float32).tiny  # attention whose logarithm is still finite


def rank_by_coverage(results: EngineResults, lengths: Array, penalty: float) -> EngineResults:
    """Adds to each score penalty * the sum over source tokens of log(min(attention received, 1))
    (Wu et al. 2016, as CTranslate2 has it), and puts the best first again.

    results: with attentions. lengths: int [B], source tokens of each sentence.
    """
    assert results.attentions is not None
    received = of_hypotheses(results.attentions, results.parent_rows).sum(2)  # [B, K, S]
    counts = np.arange(received.shape[2]) < lengths[:, None, None]
    logs = np.where(counts, np.log(received.clip(LEAST, 1)), 0)
    scores = results.scores + penalty * logs.sum(2)
    order = (-scores).argsort(1, kind="stable")

    def ordered(values: Array) -> Array:
        found: Array = values[np.arange(len(order))[:, None], order]
        return found

    return replace(
        results,
        tokens=ordered(results.tokens),
        lengths=ordered(results.lengths),
        scores=ordered(scores),
        sums=ordered(results.sums),
        parent_rows=ordered(results.parent_rows),
    )
