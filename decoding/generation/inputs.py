"""The arguments of generate(), and the token batches that are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoding.common.arrays import Array
from decoding.generation.batching import (
    TokenBatch,
    as_table,
    check_ids,
    check_windows,
    prompt_batch,
    source_batch,
)
from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.generation.special_tokens import fill_id
from decoding.models.spec import ModelSpec

PER_ROW = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "forced_bos_token_id")
assert set(PER_ROW) <= set(OPTIONS)


@dataclass(frozen=True)
class GenerateInputs:
    """The arguments of generate() beside its options: see Model.generate."""

    input_ids: Any = None
    attention_mask: Any = None
    decoder_input_ids: Any = None
    generation_config: Any = None
    logits_processor: Any = None
    prefix_allowed_tokens_fn: Any = None
    stopping_criteria: Any = None
    tokenizer: Any = None  # or a function that finds one
    shortlist: Any = None
    cancel: Any = None
    progress: Any = None


def read_inputs(
    spec: ModelSpec, config: GenerationConfig, inputs: GenerateInputs
) -> tuple[TokenBatch | None, TokenBatch]:
    """The encoder's batch, None without an encoder, and the decoder's."""
    input_ids, mask, decoder_ids = (
        inputs.input_ids,
        inputs.attention_mask,
        inputs.decoder_input_ids,
    )
    if input_ids is None:
        if config.bos_token_id is None:
            raise ValueError("input_ids is missing, and there is no bos_token_id to begin with")
        input_ids = [[config.bos_token_id]]
    if spec.encoder is None:
        if decoder_ids is not None:
            raise ValueError("decoder_input_ids is for encoder-decoders: pass them as input_ids")
        pad, eos = fill_id(config), config.eos_token_id
        prompt = prompt_batch(input_ids, mask, spec.decoder.vocab, pad=pad, eos=eos)
        check_windows(prompt, spec.decoder)
        return None, prompt
    source = source_batch(input_ids, mask, spec.encoder.vocab)
    positions = spec.encoder.positions
    if source.used_width > positions:
        raise ValueError(
            f"input_ids has a row that reaches to position {source.used_width}, the model has "
            f"{positions}: split or shorten it"
        )
    return source, decoder_batch(config, decoder_ids, len(source), spec.decoder.vocab)


def decoder_batch(config: GenerationConfig, ids: Any, batch: int, vocab: int) -> TokenBatch:
    """An encoder-decoder's prompt: the start token, before the caller's ids if none has it.

    TokenBatch of different lengths are filled up on the left, and masked there.
    """
    starts = config.decoder_start_token_id
    if not starts:
        if config.bos_token_id is None:
            raise ValueError("an encoder-decoder needs decoder_start_token_id or bos_token_id")
        starts = [config.bos_token_id]
    if len(starts) not in (1, batch):
        raise ValueError(
            f"decoder_start_token_id must be one id or one for each of {batch} rows, "
            f"got {len(starts)}"
        )
    check_ids("decoder_start_token_id", starts, vocab)
    first = np.empty(batch, np.int64)
    first[:] = starts
    if ids is None:
        return TokenBatch(first[:, None], None)
    given, mask = as_table("decoder_input_ids", ids, fill=0, pad_left=True)
    if len(given) != batch:
        raise ValueError(
            f"decoder_input_ids must have {batch} rows, as input_ids; got {len(given)}"
        )
    check_ids("decoder_input_ids", given if mask is None else given[mask], vocab)
    columns = np.zeros(batch, np.int64) if mask is None else mask.argmax(1)
    everyone = np.arange(batch)
    if (given[everyone, columns] == first).any():
        return TokenBatch(given, mask)
    ids = np.concatenate([np.zeros((batch, 1), np.int64), given], 1)
    ids[everyone, columns] = first  # one column before each row's first token
    if mask is not None:
        mask = np.concatenate([np.zeros((batch, 1), np.bool_), mask], 1)
        mask[everyone, columns] = True
    return TokenBatch(ids, mask)


def by_width(prompt: TokenBatch, encoder: bool) -> Iterator[tuple[Array, TokenBatch]]:
    """The rows of a call in groups whose prompts are equally wide: int64 [n], and those rows.

    A decoder-only model's prompts are as wide as the caller made them, padding included.
    """
    if not encoder or prompt.mask is None:
        yield np.arange(len(prompt)), prompt
        return
    for tokens in np.unique(prompt.lengths):
        chosen = (prompt.lengths == tokens).nonzero()[0]
        yield chosen, TokenBatch(prompt.ids[chosen, prompt.width - tokens :], None)


def check_per_row(config: GenerationConfig, names: Sequence[str], batch: int) -> None:
    """Raises ValueError where an option, one of those named, has values for another number of
    rows."""
    for name in names:
        if len(value := getattr(config, name)) != batch:
            raise ValueError(
                f"{name} must be one value or one for each of {batch} rows, got {len(value)}"
            )


def check_source_tokens(config: GenerationConfig, source: TokenBatch, vocab: int) -> None:
    """Raises ValueError where an option reads the source as ids of the decoder, and one is
    none. vocab: of the decoder."""
    for name in ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size"):
        if getattr(config, name) != OPTIONS[name]["default"]:
            check_ids(f"{name} reads input_ids, which", source.ids, vocab)


def check_attentions(config: GenerationConfig, encoder: bool) -> None:
    """Raises where a model without an encoder is asked for attention to a source."""
    if encoder:
        return
    if config.output_attentions and config.return_dict_in_generate:
        raise NotImplementedError(
            "output_attentions keeps attention to a source, which a decoder-only model does not "
            "have: pass output_attentions=False"
        )
    if config.coverage_penalty > 0:
        raise ValueError(
            "coverage_penalty counts attention to a source, which a decoder-only model does not "
            "have: pass coverage_penalty=0"
        )
