"""Joins the results of a call's sub-batches into tensors in the order of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from decoding.common.arrays import Array
from decoding.engine.request import EngineResults
from decoding.generation.attentions import in_columns, of_hypotheses
from decoding.generation.batching import TokenBatch

Steps = tuple[Tensor, ...]


@dataclass(frozen=True)
class SubBatchResult:
    """A sub-batch and its results."""

    chosen: Array  # int64 [n], indices of its sentences in the call
    prompt: Array  # int64 [n, P], their prompts as the caller gave them
    results: EngineResults


def sequences(sub_batches: Sequence[SubBatchResult], returned: int) -> Tensor:
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
    return torch.from_numpy(rows.reshape(batch * returned, -1))


def is_ordered(sub_batches: Sequence[SubBatchResult]) -> bool:
    """Whether one sub-batch has all of the call's sentences in their order."""
    first = sub_batches[0].chosen
    return len(sub_batches) == 1 and bool((first[1:] > first[:-1]).all())


def generated(sub_batches: Sequence[SubBatchResult], returned: int, longest: int) -> Tensor:
    """int64 [B * returned, longest]: the tokens alone."""
    return joined(
        sub_batches, lambda results: widened(results.tokens[:, :returned], longest, 0)
    ).long()


def lengths(sub_batches: Sequence[SubBatchResult], returned: int) -> Tensor:
    """int64 [B * returned]"""
    return joined(sub_batches, lambda results: results.lengths[:, :returned]).long()


def sequences_scores(sub_batches: Sequence[SubBatchResult], returned: int) -> Tensor:
    """float32 [B * returned]"""
    return joined(sub_batches, lambda results: results.scores[:, :returned])


def beam_indices(
    sub_batches: Sequence[SubBatchResult], returned: int, rows: int, longest: int
) -> Tensor:
    """int32 [B * returned, longest], the row b * rows + k that each token extended; -1 after."""
    moved = []
    for sub in sub_batches:
        first = np.arange(len(sub.chosen)) * rows  # row of each sentence in the sub-batch
        parents = widened(sub.results.parent_rows[:, :returned], longest, -1)
        in_call = parents + (sub.chosen * rows - first)[:, None, None]
        moved.append(np.where(parents >= 0, in_call, -1).astype(np.int32))
    return in_order(sub_batches, moved)


def joined(sub_batches: Sequence[SubBatchResult], take: Callable[[EngineResults], Array]) -> Tensor:
    """take: gives [n, returned, ...] of a sub-batch. Returns [B * returned, ...]."""
    return in_order(sub_batches, [take(sub.results) for sub in sub_batches])


def in_order(sub_batches: Sequence[SubBatchResult], values: Sequence[Array]) -> Tensor:
    """[n, returned, ...] of each sub-batch, put back into the order of the call's sentences."""
    every = np.concatenate(values)
    if not is_ordered(sub_batches):
        every = every[np.concatenate([sub.chosen for sub in sub_batches]).argsort()]
    return torch.from_numpy(every.reshape(every.shape[0] * every.shape[1], *every.shape[2:]))


def steps(
    sub_batches: Sequence[SubBatchResult],
    rows: int,
    kept: Callable[[EngineResults], Sequence[Tensor]],
) -> tuple[Tensor, ...]:
    """One float32 [B * rows, ...] for each step until the last sentence ended; 0 after an end."""
    if is_ordered(sub_batches):
        return tuple(kept(sub_batches[0].results))
    sentences = sum(len(sub.chosen) for sub in sub_batches)
    shape = kept(sub_batches[0].results)[0].shape[1:]
    every = []
    for step in range(max(len(kept(sub.results)) for sub in sub_batches)):
        values = torch.zeros(sentences * rows, *shape)
        for sub in sub_batches:
            if step < len(kept(sub.results)):
                own = (sub.chosen[:, None] * rows + np.arange(rows)).reshape(-1)
                values[torch.from_numpy(own)] = kept(sub.results)[step]
        every.append(values)
    return tuple(every)


def chosen_rows(steps: Steps, moves: Tensor) -> Steps:
    """Of each step the row that each result has extended, [B, ...]; moves: [B, G] as
    beam_indices()."""
    taken = moves.clamp(min=0).long()
    return tuple(step[taken[:, at]] for at, step in enumerate(steps[: moves.shape[1]]))


def attentions(
    sub_batches: Sequence[SubBatchResult], returned: int, rows: int, source: TokenBatch
) -> dict[str, tuple[Steps, ...] | Tensor]:
    """The fields cross_attentions and hypothesis_attentions."""
    wide = []
    for sub in sub_batches:
        mask = None if source.mask is None else torch.from_numpy(source.mask[sub.chosen])
        values = in_columns(kept_attentions(sub.results), mask, source.width)
        wide.append(replace(sub, results=replace(sub.results, attentions=values)))
    every = steps(wide, rows, lambda results: kept_attentions(results).unbind())
    longest = int(lengths(sub_batches, returned).max())

    def hypotheses(results: EngineResults) -> Array:
        rows = torch.from_numpy(results.parent_rows[:, :returned])
        moved = of_hypotheses(kept_attentions(results), rows).numpy()
        missing = max(0, longest - moved.shape[2])
        return np.pad(moved[:, :, :longest], [(0, 0), (0, 0), (0, missing), (0, 0)])

    return {
        "cross_attentions": tuple((step[:, None, None],) for step in every),
        "hypothesis_attentions": joined(wide, hypotheses),
    }


def kept_attentions(results: EngineResults) -> Tensor:
    assert results.attentions is not None
    return results.attentions


def transition_scores(
    tokens: Tensor, steps: Sequence[Tensor], moves: Tensor, *, normalize: bool
) -> Tensor:
    """float32 [rows, G]: of each token its value in the row of its step that it extended.

    tokens: int64 [rows, G]. steps: G or more, [R, V]. moves: [rows, G], rows of the steps; -1:
    after a row's end, where the result is 0. normalize: of log_softmax(steps).
    """
    found = torch.zeros(moves.shape)
    for at in range(moves.shape[1]):
        there = moves[:, at] >= 0
        values = steps[at].float()[moves[there, at].long()]
        values = values.log_softmax(-1) if normalize else values
        found[there, at] = values.gather(1, tokens[there, at, None])[:, 0]
    return found


def compute_transition_scores(
    sequences: Tensor,
    scores: Sequence[Tensor],
    beam_indices: Tensor | None = None,
    normalize_logits: bool = False,
) -> Tensor:
    """See Model.compute_transition_scores."""
    if beam_indices is None:
        moves = torch.arange(len(scores[0]))[:, None].expand(-1, len(scores))
    else:
        longest = int((beam_indices >= 0).sum(1).max())
        moves = beam_indices[:, :longest].cpu()
    tokens = sequences[:, sequences.shape[1] - moves.shape[1] :].cpu()
    values = [step.cpu() for step in scores]
    found = transition_scores(tokens, values, moves, normalize=normalize_logits)
    return found.to(sequences.device)


def widened(x: Array, width: int, fill: int) -> Array:
    """x [..., W] cut or filled up to `width` columns."""
    found = x[..., :width]
    missing = width - found.shape[-1]
    if missing == 0:
        return found
    return np.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, missing)], constant_values=fill)
