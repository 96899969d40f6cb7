"""Joins the results of a call's sub-batches into arrays in the order of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from decoding.common.arrays import Array
from decoding.engine.request import EngineResults


@dataclass(frozen=True)
class SubBatchResult:
    """A sub-batch and its results."""

    chosen: Array  # int64 [n], indices of its sentences in the call
    prompt: Array  # int64 [n, P], their prompts as the caller gave them
    results: EngineResults


def sequences(sub_batches: Sequence[SubBatchResult], returned: int) -> Array:
    """int64 [B * returned, longest]: each sentence's prompt as given, then its tokens. returned:
    results of each sentence that the caller wants."""
    batch = sum(len(sub.chosen) for sub in sub_batches)
    ends = [
        sub.prompt.shape[1] + int(sub.results.lengths[:, :returned].max()) for sub in sub_batches
    ]
    rows = np.empty((batch, returned, max(ends)), np.int64)
    for sub in sub_batches:
        chosen = slice(None) if is_ordered(sub_batches) else sub.chosen
        width = sub.prompt.shape[1]
        rows[chosen, :, :width] = sub.prompt[:, None]
        tokens = sub.results.tokens[:, :returned]
        rows[chosen, :, width:] = widened(tokens, max(ends) - width, sub.results.fill)
    return rows.reshape(batch * returned, -1)


def is_ordered(sub_batches: Sequence[SubBatchResult]) -> bool:
    """Whether one sub-batch has all of the call's sentences in their order."""
    first = sub_batches[0].chosen
    return len(sub_batches) == 1 and bool((first[1:] > first[:-1]).all())


def generated(sub_batches: Sequence[SubBatchResult], returned: int, longest: int) -> Array:
    """int64 [B * returned, longest]: the tokens alone."""
    tokens = joined(sub_batches, lambda results: widened(results.tokens[:, :returned], longest, 0))
    return tokens.astype(np.int64)


def lengths(sub_batches: Sequence[SubBatchResult], returned: int) -> Array:
    """int64 [B * returned]"""
    return joined(sub_batches, lambda results: results.lengths[:, :returned]).astype(np.int64)


def sequences_scores(sub_batches: Sequence[SubBatchResult], returned: int) -> Array:
    """float32 [B * returned]"""
    return joined(sub_batches, lambda results: results.scores[:, :returned])


def beam_indices(
    sub_batches: Sequence[SubBatchResult], returned: int, rows: int, longest: int
) -> Array:
    """int32 [B * returned, longest], the row b * rows + k that each token extended; -1 after."""
    moved = []
    for sub in sub_batches:
        first = np.arange(len(sub.chosen)) * rows  # row of each sentence in the sub-batch
        parents = widened(sub.results.parent_rows[:, :returned], longest, -1)
        in_call = parents + (sub.chosen * rows - first)[:, None, None]
        moved.append(np.where(parents >= 0, in_call, -1).astype(np.int32))
    return in_order(sub_batches, moved)


def joined(sub_batches: Sequence[SubBatchResult], take: Callable[[EngineResults], Array]) -> Array:
    """take: gives [n, returned, ...] of a sub-batch. Returns [B * returned, ...]."""
    return in_order(sub_batches, [take(sub.results) for sub in sub_batches])


def in_order(sub_batches: Sequence[SubBatchResult], values: Sequence[Array]) -> Array:
    """[n, returned, ...] of each sub-batch, put back into the order of the call's sentences."""
    every = np.concatenate(values)
    if not is_ordered(sub_batches):
        every = every[np.concatenate([sub.chosen for sub in sub_batches]).argsort()]
    return every.reshape(every.shape[0] * every.shape[1], *every.shape[2:])


def widened(x: Array, width: int, fill: int) -> Array:
    """x [..., W] cut or filled up to `width` columns."""
    found = x[..., :width]
    missing = width - found.shape[-1]
    if missing == 0:
        return found
    return np.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, missing)], constant_values=fill)
