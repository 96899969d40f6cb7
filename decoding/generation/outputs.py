"""The outputs of generate(): sequences shaped and filled as Hugging Face does, their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from decoding.common.arrays import Array
from decoding.common.shapes import described
from decoding.generation import hypothesis_tree, kept_steps
from decoding.generation.batching import TokenBatch
from decoding.generation.config import GenerationConfig
from decoding.generation.results import (
    SubBatchResult,
    beam_indices,
    lengths,
    sequences,
    sequences_scores,
)
from decoding.generation.special_tokens import fill_id
from decoding.generation.strategies import Strategy

if TYPE_CHECKING:
    from torch import Tensor

OURS = ("lengths", "token_logprobs", "hypothesis_attentions")  # unknown to transformers
UNKEPT = ("returned", "tokenizer")  # in copies
SHOWN = 32  # sentences in a notebook


class Output(Mapping[str, Any]):
    """Reads as transformers' ModelOutput: by name, out["sequences"], by number, out[0], or as an
    attribute; iteration, `in`, len(), keys(), items(), values() and to_tuple() know the fields that
    are set, in transformers' order, then ours.

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

    sequences: Tensor
    lengths: Tensor
    token_logprobs: Tensor | None
    returned = 1  # results of each sentence, for notebooks
    tokenizer: Any = None  # that knows the tokens' texts, or a function that finds it, for them

    def _set(self) -> list[str]:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]  # of dataclasses
        ordered = sorted(names, key=OURS.__contains__)
        return [name for name in ordered if getattr(self, name) is not None]

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        if key not in self._set():
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._set())

    def __len__(self) -> int:
        return len(self._set())

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that are set."""
        return tuple(self.values())

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={described(value)}" for name, value in self.items())
        return f"{type(self).__name__}({said})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("returned", "tokenizer")
        }

    def _repr_html_(self) -> str:
        """The results as a tree for each sentence."""
        rows, text = self._hypotheses(), hypothesis_tree.token_text(self.tokenizer)
        sentences = [rows[i : i + self.returned] for i in range(0, len(rows), self.returned)]
        rest = len(sentences) - SHOWN
        more = f"and {rest} more sentences" if rest > 0 else ""
        return hypothesis_tree.as_html(sentences[:SHOWN], text) + more

    def _hypotheses(self) -> list[hypothesis_tree.Hypothesis]:
        lengths = self.lengths.tolist()
        first = self.sequences.shape[1] - max(lengths)
        scores = getattr(self, "sequences_scores", None)
        found = []
        for i, length in enumerate(lengths):
            known = self.token_logprobs
            found.append(
                hypothesis_tree.Hypothesis(
                    tokens=self.sequences[i, first : first + length].tolist(),
                    logprobs=None if known is None else known[i, :length].tolist(),
                    score=None if scores is None else float(scores[i]),
                )
            )
        return found


@dataclass(repr=False, eq=False)
class GenerateDecoderOnlyOutput(Output):
    """Greedy search and sampling with a decoder-only model.

    sequences: int64 [B * num_return_sequences, P + longest generated], the prompts included.
    scores: with output_scores, one float32 [rows, V] for each step: processed logits, after the
        filters when sampling.
    """

    sequences: Tensor
    lengths: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    token_logprobs: Tensor | None = None


@dataclass(repr=False, eq=False)
class GenerateEncoderDecoderOutput(GenerateDecoderOnlyOutput):
    """The same with an encoder-decoder; sequences begin with the decoder's prompt."""

    cross_attentions: tuple[tuple[Tensor, ...], ...] | None = None
    hypothesis_attentions: Tensor | None = None


@dataclass(repr=False, eq=False)
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
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    beam_indices: Tensor | None = None
    token_logprobs: Tensor | None = None


@dataclass(repr=False, eq=False)
class GenerateBeamEncoderDecoderOutput(GenerateBeamDecoderOnlyOutput):
    """The same with an encoder-decoder; sequences begin with the decoder's prompt."""

    cross_attentions: tuple[tuple[Tensor, ...], ...] | None = None
    hypothesis_attentions: Tensor | None = None


GenerateOutput = GenerateDecoderOnlyOutput | GenerateBeamDecoderOnlyOutput


def build_output(
    config: GenerationConfig,
    strategy: Strategy,
    sub_batches: Sequence[SubBatchResult],
    source: TokenBatch | None,
) -> Array | GenerateOutput:
    """The output of generate(), with arrays for tensors, and for beam_indices, which texts do not
    need, a function that finds them. source: the encoder's batch, None without one."""
    returned, rows, encoder = strategy.returned, strategy.rows_per_sentence, source is not None
    tokens = sequences(sub_batches, returned)
    if not config.return_dict_in_generate:
        return tokens
    common: dict[str, Any] = {"sequences": tokens, "lengths": lengths(sub_batches, returned)}
    if config.output_scores or config.output_logits or config.output_attentions:
        common |= kept_steps.of_call(config, strategy, sub_batches, source)
    if not strategy.competing:
        plain = GenerateEncoderDecoderOutput if encoder else GenerateDecoderOnlyOutput
        return plain(**common)
    beam = GenerateBeamEncoderDecoderOutput if encoder else GenerateBeamDecoderOnlyOutput
    scored = config.output_scores or config.output_sequences_scores
    scores: Any = sequences_scores(sub_batches, returned) if scored else None
    longest = int(common["lengths"].max())
    moves: Any = partial(beam_indices, sub_batches, returned, rows, longest)
    return beam(sequences_scores=scores, beam_indices=moves, **common)


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


def as_tensors(output: Array | GenerateOutput, device: str) -> Tensor | GenerateOutput:
    """The same, as tensors on `device`."""
    import torch

    def there(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(there(item) for item in value)
        if callable(value):
            value = value()
        return torch.as_tensor(value, device=device)

    if not isinstance(output, Output):
        tensor: Tensor = there(output)
        return tensor
    return replace(output, **{name: there(value) for name, value in output.items()})
