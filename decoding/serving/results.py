"""What an engine tells of a request, in the form that the rest of generate() has."""

from __future__ import annotations

import numpy as np

from decoding import _C
from decoding.common.arrays import Array
from decoding.engine.request import EngineResults
from decoding.generation.call import SubBatch
from decoding.generation.results import SubBatchResult
from decoding.generation.streaming import Tokens


def engine_results(end: _C.Output, sub: SubBatch) -> SubBatchResult:
    """The results of a request's one sentence. end: the output that ends it."""
    lengths, fill = np.asarray(end.lengths, np.int32), sub.request.fill
    results = EngineResults(
        tokens=filled(end.tokens, lengths, fill),
        lengths=lengths[None],
        scores=np.asarray(end.scores, np.float32)[None],
        sums=np.asarray(end.sums, np.float32)[None],
        parent_rows=filled(end.parent_rows, lengths, -1),
        fill=fill,
        step_scores=[],
        step_logits=[],
    )
    return SubBatchResult(sub.chosen, sub.prompt, results)


def filled(rows: Array, lengths: Array, fill: int) -> Array:
    """int32 [1, K, n]: `fill` after each row's length. rows: [K, n]."""
    there = np.arange(rows.shape[1]) < lengths[:, None]
    return np.where(there, rows, fill).astype(np.int32)[None]


def rest(end: _C.Output, counts: list[int]) -> Tokens:
    """The tokens of each result behind those that have been told. counts: how many these are."""
    rows, lengths = end.tokens.tolist(), end.lengths.tolist()
    return [rows[row][told : lengths[row]] for row, told in enumerate(counts)]
