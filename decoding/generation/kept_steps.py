"""What is kept of each step, logits, scores and attentions, for a whole call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.common.arrays import Array
from decoding.engine.request import EngineResults
from decoding.generation.batching import TokenBatch
from decoding.generation.config import GenerationConfig
from decoding.generation.results import (
    SubBatchResult,
    beam_indices,
    generated,
    is_ordered,
    joined,
    lengths,
)
from decoding.generation.strategies import Strategy
from decoding.models.weights.dtypes import as_array, as_float32, as_tensor

if TYPE_CHECKING:
    from torch import Tensor

Steps = tuple[Array, ...]


def of_call(
    config: GenerationConfig,
    strategy: Strategy,
    sub_batches: Sequence[SubBatchResult],
    source: TokenBatch | None,
) -> dict[str, Any]:
    """The fields of an output that hold them. source: as in build_output()."""
    returned, rows = strategy.returned, strategy.rows_per_sentence
    found: dict[str, Any] = {}
    if config.output_scores:
        found["scores"] = steps(sub_batches, rows, lambda results: results.step_scores)
    if config.output_logits:
        found["logits"] = steps(sub_batches, rows, lambda results: results.step_logits)
    known = found.get("scores", found.get("logits"))
    if known is not None:
        longest = int(lengths(sub_batches, returned).max())
        moves = beam_indices(sub_batches, returned, rows, longest)
        chosen = generated(sub_batches, returned, longest)
        found["token_logprobs"] = transition_scores(
            chosen, known, moves, normalize=not (strategy.competing and config.output_scores)
        )
        if config.contrastive:  # its rows are candidates of which one is chosen
            for name in {"scores", "logits"} & found.keys():
                found[name] = chosen_rows(found[name], moves)
    if config.output_attentions and source is not None:
        found |= attentions(sub_batches, returned, rows, source)
    return found


def steps(
    sub_batches: Sequence[SubBatchResult],
    rows: int,
    kept: Callable[[EngineResults], Sequence[Array]],
) -> Steps:
    """One float32 [B * rows, ...] for each step until the last sentence ended; 0 after an end."""
    if is_ordered(sub_batches):
        return tuple(kept(sub_batches[0].results))
    sentences = sum(len(sub.chosen) for sub in sub_batches)
    shape = kept(sub_batches[0].results)[0].shape[1:]
    every = []
    for step in range(max(len(kept(sub.results)) for sub in sub_batches)):
        values = np.zeros((sentences * rows, *shape), np.float32)
        for sub in sub_batches:
            if step < len(kept(sub.results)):
                own = (sub.chosen[:, None] * rows + np.arange(rows)).reshape(-1)
                values[own] = kept(sub.results)[step]
        every.append(values)
    return tuple(every)


def chosen_rows(steps: Steps, moves: Array) -> Steps:
    """Of each step the row that each result has extended, [B, ...]; moves: [B, G] as
    beam_indices()."""
    taken = moves.clip(0)
    return tuple(step[taken[:, at]] for at, step in enumerate(steps[: moves.shape[1]]))


def attentions(
    sub_batches: Sequence[SubBatchResult], returned: int, rows: int, source: TokenBatch
) -> dict[str, tuple[Steps, ...] | Array]:
    """The fields cross_attentions and hypothesis_attentions."""
    wide = []
    for sub in sub_batches:
        mask = None if source.mask is None else source.mask[sub.chosen]
        values = in_columns(kept_attentions(sub.results), mask, source.width)
        wide.append(replace(sub, results=replace(sub.results, attentions=values)))
    every = steps(wide, rows, lambda results: list(kept_attentions(results)))
    longest = int(lengths(sub_batches, returned).max())

    def hypotheses(results: EngineResults) -> Array:
        moved = of_hypotheses(kept_attentions(results), results.parent_rows[:, :returned])
        missing = max(0, longest - moved.shape[2])
        return np.pad(moved[:, :, :longest], [(0, 0), (0, 0), (0, missing), (0, 0)])

    return {
        "cross_attentions": tuple((step[:, None, None],) for step in every),
        "hypothesis_attentions": joined(wide, hypotheses),
    }


def kept_attentions(results: EngineResults) -> Array:
    assert results.attentions is not None
    return results.attentions


def transition_scores(
    tokens: Array, steps: Sequence[Array], moves: Array, *, normalize: bool
) -> Array:
    """float32 [rows, G]: of each token its value in the row of its step that it extended.

    tokens: int64 [rows, G]. steps: G or more, [R, V]. moves: [rows, G], rows of the steps; -1:
    after a row's end, where the result is 0. normalize: of log_softmax(steps).
    """
    found = np.zeros(moves.shape, np.float32)
    for at in range(moves.shape[1]):
        there = moves[:, at] >= 0
        values = as_float32(steps[at][moves[there, at]])
        chosen = np.take_along_axis(values, tokens[there, at, None], 1)[:, 0]
        found[there, at] = chosen - log_sum(values) if normalize else chosen
    return found


def log_sum(values: Array) -> Array:
    """float32 [rows], the logarithms of the sums of the powers of e. values: [rows, V]."""
    largest = values.max(1)
    found: Array = largest + np.log(np.exp(values - largest[:, None]).sum(1))
    return found


def compute_transition_scores(
    sequences: Tensor,
    scores: Sequence[Tensor],
    beam_indices: Tensor | None = None,
    normalize_logits: bool = False,
) -> Tensor:
    """See Model.compute_transition_scores."""
    if beam_indices is None:
        moves = np.tile(np.arange(len(scores[0]))[:, None], len(scores))
    else:
        longest = int((beam_indices >= 0).sum(1).max())
        moves = as_array(beam_indices[:, :longest])
    tokens = as_array(sequences)[:, sequences.shape[1] - moves.shape[1] :]
    values = [as_array(step) for step in scores]
    found = transition_scores(tokens, values, moves, normalize=normalize_logits)
    return as_tensor(found).to(sequences.device)


def of_hypotheses(attentions: Array, parent_rows: Array) -> Array:
    """The attention of each hypothesis's tokens: float32 [B, K, longest, S], 0 after its end.

    attentions: float32 [steps, B * K, S], of each step's rows. parent_rows: int [B, K, G], the row
    of its step that each token extended; -1 after a hypothesis's end.
    """
    longest = min(len(attentions), parent_rows.shape[2])
    parent_rows = parent_rows[..., :longest]
    found: Array = attentions[np.arange(longest), parent_rows.clip(0)]
    found[parent_rows < 0] = 0
    return found


def in_columns(attentions: Array, mask: Array | None, width: int) -> Array:
    """[steps, B * K, width]: masked tokens get 0.

    attentions: [steps, B * K, S], of the tokens that count, one after the other. mask: bool
    [B, width], which ones those are; None: all.
    """
    if mask is None:
        return attentions[..., :width]
    every = np.zeros((*attentions.shape[:2], width), np.float32)
    rows = attentions.shape[1] // len(mask)
    for b, counts in enumerate(mask):
        own = slice(b * rows, (b + 1) * rows)
        every[:, own, counts] = attentions[:, own, : int(counts.sum())]
    return every
