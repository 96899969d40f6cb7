"""What generate() returns: sequences shaped and filled as Hugging Face does, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoding.batching import Array
from decoding.config import GenerationConfig
from decoding.search.rules import fill_id
from decoding.session import Results


class Output:
    """A field that is set can also be read by its name, out["sequences"], as in Hugging Face."""

    def __getitem__(self, name: str) -> Any:
        value = vars(self).get(name)
        if value is None:
            raise KeyError(name)
        return value


@dataclass
class GenerateDecoderOnlyOutput(Output):
    """Greedy search and sampling with a decoder-only model.

    sequences: int64 [B * num_return_sequences, P + longest generated], the prompts included.
    scores: with output_scores, one float32 [rows, V] for each step: processed logits, after
        temperature, top_k and top_p when sampling. Undefined for rows that have ended.
    """

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None


@dataclass
class GenerateEncoderDecoderOutput(GenerateDecoderOnlyOutput):
    """The same with an encoder-decoder; sequences begin with the decoder's prompt."""


@dataclass
class GenerateBeamDecoderOnlyOutput(Output):
    """Beam search with a decoder-only model.

    sequences: int64 [B * num_return_sequences, P + longest generated], best first per sentence.
    sequences_scores: with output_scores or output_sequences_scores, float32
        [B * num_return_sequences]: S / G^length_penalty.
    scores: with output_scores, one float32 [B * num_beams, V] for each step: processed
        log-probabilities of the beams' next tokens. Undefined for sentences that have ended.
    beam_indices: int32 [B * num_return_sequences, longest generated], the row of `scores` that each
        token extended; -1 behind a row's end.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    scores: tuple[Tensor, ...] | None = None
    beam_indices: Tensor | None = None


@dataclass
class GenerateBeamEncoderDecoderOutput(GenerateBeamDecoderOnlyOutput):
    """The same with an encoder-decoder; sequences begin with the decoder's prompt."""


GenerateOutput = GenerateDecoderOnlyOutput | GenerateBeamDecoderOnlyOutput


Parts = Sequence[tuple[Array, Results]]  # int64 [n], sentences, and what was found for them


def longest(parts: Parts, returned: int) -> int:
    """Tokens of the longest result. returned: results of each sentence that the caller wants."""
    return max(int(found.lengths.numpy()[:, :returned].max()) for _, found in parts)


def sequences(parts: Parts, returned: int, longest: int, prompt: Array) -> Tensor:
    """int64 [B * returned, P + longest]: each sentence's prompt [P] as given, then its tokens."""
    batch, width = prompt.shape
    rows = np.empty((batch, returned, width + longest), np.int64)
    rows[:, :, :width] = prompt[:, None]
    for chosen, found in parts:
        place = slice(None) if len(parts) == 1 else chosen
        rows[place, :, width:] = widened(found.tokens[:, :returned], longest, found.fill)
    return torch.from_numpy(rows.reshape(batch * returned, width + longest))


def sequences_scores(parts: Parts, returned: int) -> Tensor:
    """float32 [B * returned]."""
    scores = np.concatenate([found.scores.numpy()[:, :returned] for _, found in parts])
    return torch.from_numpy(scores[order(parts)].reshape(-1))


def beam_indices(parts: Parts, returned: int, rows: int, longest: int) -> Tensor:
    """int32 [B * returned, longest], the row b * rows + k that each token extended; -1 behind."""
    moved = []
    for chosen, found in parts:
        first = np.arange(len(chosen)) * rows  # of each sentence in the part, then in the call
        slots = widened(found.slots[:, :returned], longest, -1)
        there = slots + (chosen * rows - first)[:, None, None]
        moved.append(np.where(slots >= 0, there, -1).astype(np.int32))
    joined = np.concatenate(moved)[order(parts)]
    return torch.from_numpy(joined.reshape(len(joined) * returned, longest))


def order(parts: Parts) -> Array:
    """Where each of the call's sentences is, in parts one behind the other."""
    return np.concatenate([chosen for chosen, _ in parts]).argsort()


def step_scores(parts: Parts, rows: int) -> tuple[Tensor, ...]:
    """One float32 [B * rows, V] for each step until the last sentence ended; 0 behind an end."""
    sentences = sum(len(chosen) for chosen, _ in parts)
    first = parts[0][1].steps[0]
    steps = []
    for step in range(max(len(found.steps) for _, found in parts)):
        scores = torch.zeros(sentences * rows, first.shape[1])
        for chosen, found in parts:
            if step < len(found.steps):
                places = (chosen[:, None] * rows + np.arange(rows)).reshape(-1)
                scores[torch.from_numpy(places)] = found.steps[step]
        steps.append(scores)
    return tuple(steps)


def widened(x: Tensor, width: int, fill: int) -> Array:
    """x [..., W] cut or filled up to `width` columns."""
    found: Array = x.numpy()[..., :width]
    missing = width - found.shape[-1]
    if missing == 0:
        return found
    return np.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, missing)], constant_values=fill)


def fill_value(config: GenerationConfig, beams: bool) -> int:
    """What stands behind a row's end.

    Hugging Face fills with pad, for which the first EOS stands in; its beam search computes
    `pad or eos[0]` and so takes the EOS where pad is 0 too, and -1 where nothing can end a row.
    """
    pad = fill_id(config)
    if not beams:
        return 0 if pad is None else pad
    return (pad or config.eos_token_id[0]) if config.eos_token_id else -1


def moved(output: Tensor | GenerateOutput, device: torch.device) -> Tensor | GenerateOutput:
    """The same on `device`."""
    if isinstance(output, Tensor):
        return output.to(device)
    for name, value in vars(output).items():
        if isinstance(value, Tensor):
            setattr(output, name, value.to(device))
        elif value is not None:
            setattr(output, name, tuple(step.to(device) for step in value))
    return output
