"""The outputs of generate(): sequences shaped and filled as Hugging Face does, their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from decoding.generation.batching import TokenBatch
from decoding.generation.config import GenerationConfig
from decoding.generation.results import (
    Steps,
    SubBatchResult,
    attentions,
    beam_indices,
    chosen_rows,
    generated,
    lengths,
    sequences,
    sequences_scores,
    steps,
    transition_scores,
)
from decoding.generation.special_tokens import fill_id
from decoding.generation.strategies import Strategy


class Output:
    """A field that is set can also be read by its name, out["sequences"], as in Hugging Face.

    lengths: int64 [B * num_return_sequences], tokens generated, EOS included.
    logits: with output_logits, one float32 [rows, V] for each step: the model's own.
    token_logprobs: with output_scores, else with output_logits, float32 [B * num_return_sequences,
        longest generated]: of each token the log-probability under log_softmax of its `scores`,
        else `logits` (in beam search `scores` are log-probabilities as they are); 0 after a row's
        end.
    cross_attentions: with output_attentions, of an encoder-decoder: for each step a tuple of one
        float32 [rows, 1, 1, S], the last layer's mean over its heads, 0 for masked tokens.
    hypothesis_attentions: the same along each result, float32 [B * num_return_sequences, longest
        generated, S]; 0 after a row's end.
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
        filters when sampling.
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
        token extended; -1 after a row's end.
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


def build_output(
    config: GenerationConfig,
    strategy: Strategy,
    sub_batches: Sequence[SubBatchResult],
    source: TokenBatch | None,
) -> Tensor | GenerateOutput:
    """The output of generate(), on the CPU. source: the encoder's batch, None without one."""
    returned, rows, encoder = strategy.returned, strategy.rows_per_sentence, source is not None
    tokens = sequences(sub_batches, returned)
    if not config.return_dict_in_generate:
        return tokens
    common: dict[str, Any] = {"lengths": lengths(sub_batches, returned)}
    if config.output_scores:
        common["scores"] = steps(sub_batches, rows, lambda results: results.step_scores)
    if config.output_logits:
        common["logits"] = steps(sub_batches, rows, lambda results: results.step_logits)
    longest = int(common["lengths"].max())
    known = common.get("scores", common.get("logits"))
    if known is not None:
        moves = beam_indices(sub_batches, returned, rows, longest)
        chosen = generated(sub_batches, returned, longest)
        common["token_logprobs"] = transition_scores(
            chosen, known, moves, normalize=not (strategy.competing and config.output_scores)
        )
        if config.contrastive:  # its rows are candidates of which one is chosen
            for name in {"scores", "logits"} & common.keys():
                common[name] = chosen_rows(common[name], moves)
    if config.output_attentions and source is not None:
        common |= attentions(sub_batches, returned, rows, source)
    if not strategy.competing:
        plain = GenerateEncoderDecoderOutput if encoder else GenerateDecoderOnlyOutput
        return plain(tokens, **common)
    beam = GenerateBeamEncoderDecoderOutput if encoder else GenerateBeamDecoderOnlyOutput
    scored = config.output_scores or config.output_sequences_scores
    return beam(
        tokens,
        sequences_scores=sequences_scores(sub_batches, returned) if scored else None,
        beam_indices=beam_indices(sub_batches, returned, rows, longest),
        **common,
    )


def fill_value(config: GenerationConfig, beams: bool) -> int:
    """The token after a row's end.

    Hugging Face fills with pad, in whose absence the first EOS is used; its beam search computes
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
