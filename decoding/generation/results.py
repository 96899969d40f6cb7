"""From the sub-batches of a call to tensors in the order of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from decoding.engine.session import Results
from decoding.generation.attentions import along, in_columns
from decoding.generation.batching import Array, Rows

Steps = tuple[Tensor, ...]


@dataclass(frozen=True)
class Part:
    """A sub-batch: int64 [n], its sentences' places in the call; [n, P], their prompts as the
    caller gave them; and what was found for them."""

    chosen: Array
    prompt: Array
    found: Results


def sequences(parts: Sequence[Part], returned: int) -> Tensor:
    """int64 [B * returned, longest]: each sentence's prompt as given, then its tokens. returned:
    results of each sentence that the caller wants."""
    batch = sum(len(part.chosen) for part in parts)
    ends = [
        part.prompt.shape[1] + int(part.found.lengths.numpy()[:, :returned].max()) for part in parts
    ]
    rows = np.empty((batch, returned, max(ends)), np.int64)
    for part in parts:
        place = slice(None) if len(parts) == 1 else part.chosen
        width = part.prompt.shape[1]
        rows[place, :, :width] = part.prompt[:, None]
        tokens = part.found.tokens[:, :returned]
        rows[place, :, width:] = widened(tokens, max(ends) - width, part.found.fill)
    return torch.from_numpy(rows.reshape(batch * returned, -1))


def generated(parts: Sequence[Part], returned: int, longest: int) -> Tensor:
    """int64 [B * returned, longest]: the tokens alone."""
    return joined(parts, lambda found: widened(found.tokens[:, :returned], longest, 0)).long()


def lengths(parts: Sequence[Part], returned: int) -> Tensor:
    """int64 [B * returned]"""
    return joined(parts, lambda found: found.lengths.numpy()[:, :returned]).long()


def sequences_scores(parts: Sequence[Part], returned: int) -> Tensor:
    """float32 [B * returned]"""
    return joined(parts, lambda found: found.scores.numpy()[:, :returned])


def beam_indices(parts: Sequence[Part], returned: int, rows: int, longest: int) -> Tensor:
    """int32 [B * returned, longest], the row b * rows + k that each token extended; -1 behind."""
    moved = []
    for part in parts:
        first = np.arange(len(part.chosen)) * rows  # of each sentence in the part, then in the call
        slots = widened(part.found.slots[:, :returned], longest, -1)
        there = slots + (part.chosen * rows - first)[:, None, None]
        moved.append(np.where(slots >= 0, there, -1).astype(np.int32))
    return in_order(parts, moved)


def joined(parts: Sequence[Part], take: Callable[[Results], Array]) -> Tensor:
    """take: [n, returned, ...] of a part. Returns [B * returned, ...]."""
    return in_order(parts, [take(part.found) for part in parts])


def in_order(parts: Sequence[Part], values: Sequence[Array]) -> Tensor:
    """[n, returned, ...] of each part, put back into the order of the call's sentences."""
    every = np.concatenate(values)
    if len(parts) > 1:
        every = every[np.concatenate([part.chosen for part in parts]).argsort()]
    return torch.from_numpy(every.reshape(every.shape[0] * every.shape[1], *every.shape[2:]))


def steps(
    parts: Sequence[Part], rows: int, kept: Callable[[Results], Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """One float32 [B * rows, ...] for each step until the last sentence ended; 0 behind an end."""
    if len(parts) == 1:
        return tuple(kept(parts[0].found))
    sentences = sum(len(part.chosen) for part in parts)
    shape = kept(parts[0].found)[0].shape[1:]
    every = []
    for step in range(max(len(kept(part.found)) for part in parts)):
        values = torch.zeros(sentences * rows, *shape)
        for part in parts:
            if step < len(kept(part.found)):
                places = (part.chosen[:, None] * rows + np.arange(rows)).reshape(-1)
                values[torch.from_numpy(places)] = kept(part.found)[step]
        every.append(values)
    return tuple(every)


def chosen_rows(steps: Steps, moves: Tensor) -> Steps:
    """Of each step the row that each result has extended, [B, ...]; moves: [B, G] as
    beam_indices()."""
    taken = moves.clamp(min=0).long()
    return tuple(step[taken[:, at]] for at, step in enumerate(steps[: moves.shape[1]]))


def attentions(
    parts: Sequence[Part], returned: int, rows: int, source: Rows
) -> dict[str, tuple[Steps, ...] | Tensor]:
    """The fields cross_attentions and hypothesis_attentions."""
    placed = []
    for part in parts:
        mask = None if source.mask is None else torch.from_numpy(source.mask[part.chosen])
        wide = in_columns(kept_attentions(part.found), mask, source.width)
        placed.append(replace(part, found=replace(part.found, attentions=wide)))
    every = steps(placed, rows, lambda found: kept_attentions(found).unbind())
    longest = int(lengths(parts, returned).max())

    def hypotheses(found: Results) -> Array:
        moved = along(kept_attentions(found), found.slots[:, :returned]).numpy()
        missing = max(0, longest - moved.shape[2])
        return np.pad(moved[:, :, :longest], [(0, 0), (0, 0), (0, missing), (0, 0)])

    return {
        "cross_attentions": tuple((step[:, None, None],) for step in every),
        "hypothesis_attentions": joined(placed, hypotheses),
    }


def kept_attentions(found: Results) -> Tensor:
    assert found.attentions is not None
    return found.attentions


def transition_scores(
    tokens: Tensor, steps: Sequence[Tensor], moves: Tensor, *, normalize: bool
) -> Tensor:
    """float32 [rows, G]: of each token its value in the row of its step that it extended.

    tokens: int64 [rows, G]. steps: G or more, [R, V]. moves: [rows, G], rows of the steps; -1:
    behind a row's end, where the result is 0. normalize: of log_softmax(steps).
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


def widened(x: Tensor, width: int, fill: int) -> Array:
    """x [..., W] cut or filled up to `width` columns."""
    found: Array = x.numpy()[..., :width]
    missing = width - found.shape[-1]
    if missing == 0:
        return found
    return np.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, missing)], constant_values=fill)
