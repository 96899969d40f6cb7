"""What generate() returns: sequences shaped and filled as Hugging Face does, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoding.attentions import along, in_columns
from decoding.batching import Array, Rows
from decoding.config import GenerationConfig
from decoding.search import Strategy
from decoding.search.rules import fill_id
from decoding.session import Results

Steps = tuple[Tensor, ...]


class Output:
    """A field that is set can also be read by its name, out["sequences"], as in Hugging Face.

    lengths: int64 [B * num_return_sequences], tokens generated, EOS included.
    logits: with output_logits, one float32 [rows, V] for each step: the model's own.
    token_logprobs: with output_scores, else with output_logits, float32 [B * num_return_sequences,
        longest generated]: of each token the log-probability under log_softmax of its `scores`,
        else `logits` (in beam search `scores` are log-probabilities as they are); 0 behind a row's
        end.
    cross_attentions: with output_attentions, of an encoder-decoder: for each step a tuple of one
        float32 [rows, 1, 1, S], the last layer's mean over its heads, 0 for masked tokens.
    hypothesis_attentions: the same along each result, float32 [B * num_return_sequences, longest
        generated, S]; 0 behind a row's end.
    Steps go on until the last sentence has ended; they are undefined for rows that ended before.
    """

    def __getitem__(self, name: str) -> Any:
        value = vars(self).get(name)
        if value is None:
            raise KeyError(name)
        return value


@dataclass
class GenerateDecoderOnlyOutput(Output):
    """Greedy search and sampling with a decoder-only model.

    sequences: int64 [B * num_return_sequences, P + longest generated], the prompts included.
    scores: with output_scores, one float32 [rows, V] for each step: processed logits, after the
        warpers when sampling.
    """

    sequences: Tensor
    lengths: Tensor
    scores: Steps | None = None
    logits: Steps | None = None
    token_logprobs: Tensor | None = None


@dataclass
class GenerateEncoderDecoderOutput(GenerateDecoderOnlyOutput):
    """The same with an encoder-decoder; sequences begin with the decoder's prompt."""

    cross_attentions: tuple[Steps, ...] | None = None
    hypothesis_attentions: Tensor | None = None


@dataclass
class GenerateBeamDecoderOnlyOutput(Output):
    """Beam search with a decoder-only model.

    sequences: int64 [B * num_return_sequences, P + longest generated], best first per sentence.
    sequences_scores: with output_scores or output_sequences_scores, float32
        [B * num_return_sequences]: S / G^length_penalty.
    scores: with output_scores, one float32 [B * num_beams, V] for each step: processed
        log-probabilities of the beams' next tokens.
    beam_indices: int32 [B * num_return_sequences, longest generated], the row of `scores` that each
        token extended; -1 behind a row's end.
    """

    sequences: Tensor
    lengths: Tensor
    sequences_scores: Tensor | None = None
    scores: Steps | None = None
    logits: Steps | None = None
    beam_indices: Tensor | None = None
    token_logprobs: Tensor | None = None


@dataclass
class GenerateBeamEncoderDecoderOutput(GenerateBeamDecoderOnlyOutput):
    """The same with an encoder-decoder; sequences begin with the decoder's prompt."""

    cross_attentions: tuple[Steps, ...] | None = None
    hypothesis_attentions: Tensor | None = None


GenerateOutput = GenerateDecoderOnlyOutput | GenerateBeamDecoderOnlyOutput


@dataclass(frozen=True)
class Part:
    """A sub-batch: int64 [n], its sentences' places in the call; [n, P], their prompts as the
    caller gave them; and what was found for them."""

    chosen: Array
    prompt: Array
    found: Results


def results(
    config: GenerationConfig, strategy: Strategy, parts: Sequence[Part], source: Rows | None
) -> Tensor | GenerateOutput:
    """What generate() returns, on the CPU. source: the rows of the encoder, where there is one."""
    returned, rows, encoder = strategy.returned, strategy.rows, source is not None
    tokens = sequences(parts, returned)
    if not config.return_dict_in_generate:
        return tokens
    common: dict[str, Any] = {"lengths": lengths(parts, returned)}
    if config.output_scores:
        common["scores"] = steps(parts, rows, lambda found: found.steps)
    if config.output_logits:
        common["logits"] = steps(parts, rows, lambda found: found.logits)
    longest = int(common["lengths"].max())
    known = common.get("scores", common.get("logits"))
    if known is not None:
        moves = beam_indices(parts, returned, rows, longest)
        chosen = generated(parts, returned, longest)
        common["token_logprobs"] = transition_scores(
            chosen, known, moves, normalize=not (strategy.beams and config.output_scores)
        )
    if config.output_attentions and source is not None:
        common |= attentions(parts, returned, rows, source)
    if not strategy.beams:
        plain = GenerateEncoderDecoderOutput if encoder else GenerateDecoderOnlyOutput
        return plain(tokens, **common)
    beam = GenerateBeamEncoderDecoderOutput if encoder else GenerateBeamDecoderOnlyOutput
    scored = config.output_scores or config.output_sequences_scores
    return beam(
        tokens,
        sequences_scores=sequences_scores(parts, returned) if scored else None,
        beam_indices=beam_indices(parts, returned, rows, longest),
        **common,
    )


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


def fill_value(config: GenerationConfig, beams: bool) -> int:
    """What stands behind a row's end.

    Hugging Face fills with pad, for which the first EOS stands in; its beam search computes
    `pad or eos[0]` and so takes the EOS where pad is 0 too, and -1 where nothing can end a row.
    That of groups and of constraints, which only its version 4 had, fills with pad.
    """
    pad = fill_id(config)
    if not beams or config.num_beam_groups > 1 or config.force_words_ids:
        return 0 if pad is None else pad
    return (pad or config.eos_token_id[0]) if config.eos_token_id else -1


def moved(output: Tensor | GenerateOutput, device: torch.device) -> Tensor | GenerateOutput:
    """The same on `device`."""
    if isinstance(output, Tensor):
        return output.to(device)

    def there(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(there(item) for item in value)
        return value if value is None else value.to(device)

    return replace(output, **{name: there(value) for name, value in vars(output).items()})
