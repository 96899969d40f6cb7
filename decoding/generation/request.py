"""From resolved options and token batches to the engine's request: the one place that builds it."""

from __future__ import annotations

import numpy as np
import torch

from decoding import _C
from decoding.engine.request import EngineRequest, PackedTokens
from decoding.generation import outputs, processors
from decoding.generation.batching import Array, TokenBatch
from decoding.generation.config import GenerationConfig
from decoding.generation.lengths import Lengths, lengths
from decoding.generation.sentences import sentence_rules
from decoding.generation.special_tokens import end_ids, fill_id
from decoding.generation.stop_strings import StopTable
from decoding.generation.strategies import Strategy, sampling
from decoding.models.spec import StackSpec


def build_request(
    config: GenerationConfig,
    strategy: Strategy,
    decoder: StackSpec,
    prompt: TokenBatch,
    source: TokenBatch | None,
    chosen: Array,
    *,
    stop: StopTable | None,
    hooked: bool,
) -> EngineRequest:
    """The request of one sub-batch, without shortlist and observer.

    config: its options; per-row options have one value for each of its sentences. chosen: int64
    [B], the places of its sentences in the call. hooked: the caller's functions see the scores.
    Raises ValueError where the model has no room for the tokens.
    """
    rotary = decoder.rotary
    within = rotary.original if rotary is not None and rotary.settled else None
    length = lengths(config, prompt.width, prompt.lengths, decoder.positions, within)
    results, rows = config.return_dict_in_generate, strategy.rows_per_sentence
    keep_scores = results and config.output_scores
    wanted = processors.wanted(config) or config.contrastive
    processed = hooked or keep_scores or wanted
    filters = sampling.filters(config, processed=processed)
    controls = None
    if processed or filters is not None:
        controls = processors.processors(config, length.min_new, decoder.vocab, prompt, source)
    ids = torch.from_numpy(chosen.astype(np.int32))
    sentences = torch.from_numpy(
        sentence_rules(config, length, prompt.width, chosen, rows).view(np.uint8)
    )
    packed, unconditional = prompt.pack(), 0
    if config.guidance_scale != 1:
        packed, unconditional = with_unconditional(packed, source is not None), len(packed)
        ids, sentences = ids.repeat(2), sentences.repeat(2)
    return EngineRequest(
        source=None if source is None else source.pack(),
        prompt=packed,
        items=ids,
        sentences=sentences,
        rows_per_sentence=rows,
        max_new=length.max_new,
        eos=len(end_ids(config, decoder.vocab)),
        rules=rules(config, length, decoder.vocab),
        search=strategy.search,
        fill=outputs.fill_value(config, strategy.competing),
        max_finished=strategy.max_finished,
        processors=controls,
        filters=filters,
        stop_table=None if stop is None else stop.table,
        stop_first=None if stop is None else stop.states_after(prompt.ids),
        unconditional=unconditional,
        max_time=config.max_time,
        keep_attentions=(results and config.output_attentions)
        or (strategy.competing and config.coverage_penalty > 0),
        keep_scores=keep_scores,
        keep_logits=results and config.output_logits,
    )


def rules(config: GenerationConfig, lengths: Lengths, vocab: int) -> _C.Rules:
    """The engine's rules. vocab: ids that the decoder has."""
    banned = {word[0] for word in config.bad_words_ids if len(word) == 1}
    pad = fill_id(config)
    return _C.Rules(
        max_new=lengths.max_new,
        min_new=lengths.min_new,
        eos=end_ids(config, vocab),
        pad=pad if pad is not None and 0 <= pad < vocab else 0,  # ended rows compute, unread
        banned=sorted(banned - set(config.eos_token_id)),
        forced_last=sorted(set(config.forced_eos_token_id)),
        renormalize=config.renormalize_logits,
    )


def with_unconditional(prompt: PackedTokens, encoder: bool) -> PackedTokens:
    """The prompts, then for each its last token alone: classifier-free guidance's unconditional
    pass, as in Hugging Face. Raises ValueError for an encoder-decoder."""
    if encoder:
        raise ValueError(
            "guidance_scale is for decoder-only models: an encoder-decoder has no shorter prompt"
        )
    last, count = prompt.offsets[1:] - 1, len(prompt)
    offsets = prompt.offsets[-1] + torch.arange(1, count + 1, dtype=torch.int32)
    return PackedTokens(
        torch.cat([prompt.ids, prompt.ids[last.long()]]),
        torch.cat([prompt.offsets, offsets]),
        torch.cat([prompt.positions, torch.zeros(count, dtype=torch.int32)]),
        prompt.longest,
    )
