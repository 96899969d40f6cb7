"""Builds the engine's request from resolved options and token batches.

Every option of _C.Request may differ between sentences: it is one value for all of them, or a
sequence with one for each.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from typing import Any

import numpy as np

from decoding import _C
from decoding.common.arrays import Array, loaded_torch
from decoding.engine.limits import Limits
from decoding.engine.request import EngineRequest, PackedTokens
from decoding.generation.batching import TokenBatch
from decoding.generation.config import GenerationConfig
from decoding.generation.lengths import lengths
from decoding.generation.processors import texts
from decoding.generation.resolved import ResolvedOptions
from decoding.generation.special_tokens import shortlist_ids
from decoding.generation.stop_strings import StopTable
from decoding.generation.strategies.sampling import is_filter
from decoding.models.spec import StackSpec
from decoding.text.shortlist import Shortlist


def build_request(
    options: ResolvedOptions,
    decoder: StackSpec,
    *,
    prompt: TokenBatch,
    source: TokenBatch | None,
    chosen: Array,
    seed: int,
    stop: StopTable | None,
    hooked: bool,
) -> EngineRequest:
    """The request of one sub-batch, without shortlist and observer.

    options: of its sentences. chosen: int64 [B], their indices in the call. seed: where the options
    have none. hooked: the caller's functions see the scores.
    Raises ValueError where the model has no room for the tokens.
    """
    config, shared = options.config, options.shared
    request = shared.for_sentences(
        len(prompt),
        process=hooked,
        **sized(options, decoder, prompt),
        **random_numbers(config, seed, chosen, options.strategy.rows_per_sentence),
        **({} if stop is None else stop.options(prompt.ids)),
        **(texts(prompt, source) if shared.reads_texts else {}),
        **{name: getattr(config, name) for name in options.per_row if is_filter(config, name)},
    )
    packed_source, packed = None if source is None else source.pack(), prompt.pack()
    ids = chosen.astype(np.int32)
    if request.guided:
        packed, ids = with_unconditional(packed, source is not None), np.tile(ids, 2)
    results = config.return_dict_in_generate
    return EngineRequest(
        request,
        packed_source,
        packed,
        ids,
        limits_of(request, options, source=packed_source, prompt=packed),
        fill=options.fill,
        max_time=math.inf if config.max_time is None else config.max_time,
        keep_attentions=options.keep_attentions,
        keep_scores=results and config.output_scores,
        keep_logits=results and config.output_logits,
    )


def sized(options: ResolvedOptions, decoder: StackSpec, prompt: TokenBatch) -> dict[str, Any]:
    """The arguments of _C.Request that depend on how long the prompts are."""
    rotary = decoder.rotary
    within = rotary.original if rotary is not None and rotary.settled else None
    length = lengths(options.config, prompt, decoder.positions, within)
    first = options.config.forced_bos_token_id
    return {
        "max_new": length.max_new,
        "min_new": length.min_new,
        "forced_first": first if prompt.width == 1 and first is not None else -1,
    }


def limits_of(
    request: _C.Request,
    options: ResolvedOptions,
    *,
    source: PackedTokens | None,
    prompt: PackedTokens,
) -> Limits:
    """The limits that the memory is planned for."""
    strategy, search = options.strategy, options.strategy.search
    rows, finished = strategy.rows_per_sentence, strategy.max_finished
    one_token = isinstance(search, (_C.Greedy, _C.Sampling))
    return Limits(
        batch=len(prompt),
        beams=rows,
        source=0 if source is None else source.longest,
        prompt=prompt.longest,
        target=request.steps,
        eos=0 if one_token else max(1, options.ends),
        finished=finished if finished > rows else 0,
        controls=max(1, request.words) if request.processed else 0,
        attentions=int(options.keep_attentions),
        hidden=int(isinstance(search, _C.Contrastive)),
        phrases=search.words if isinstance(search, _C.Constrained) else 0,
    )


def with_shortlist(
    request: EngineRequest, shortlist: Shortlist, config: GenerationConfig
) -> EngineRequest:
    """The same request, for the tokens that the shortlist allows its sources together."""
    assert request.source is not None
    needed = shortlist_ids(config, shortlist.target_ids)
    allowed = shortlist.ids_for(request.source.ids, needed)
    limits = replace(request.limits, shortlist=len(allowed))
    return replace(request, shortlist=allowed, limits=limits)


def random_numbers(
    config: GenerationConfig, drawn: int, chosen: Array, rows: int
) -> dict[str, Any]:
    """The arguments of _C.Request that key random numbers. drawn: the seed where the options have
    none. rows: of each sentence.

    One seed serves all rows, each with a row word of its own; a sequence has one for each sentence,
    whose draws then do not depend on its index in the call.
    """
    if isinstance(config.seed, tuple):
        return {"seed": config.seed}
    seed = drawn if config.seed is None else config.seed
    return {"seed": seed, "random_first": chosen * rows}


def drawn_seed() -> int:
    """64 bits of torch's default generator: torch.manual_seed repeats a program, calls differ.
    Where nobody has imported torch, and so none has set a seed, of the system's."""
    torch = loaded_torch()
    if torch is None:
        return secrets.randbits(64)
    return int(torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)) % 2**64


def with_unconditional(prompt: PackedTokens, encoder: bool) -> PackedTokens:
    """The prompts, then for each its last token alone: classifier-free guidance's unconditional
    pass, as in Hugging Face. Raises ValueError for an encoder-decoder."""
    if encoder:
        raise ValueError(
            "guidance_scale is for decoder-only models: an encoder-decoder has no shorter prompt"
        )
    last, count = prompt.offsets[1:] - 1, len(prompt)
    offsets = prompt.offsets[-1] + np.arange(1, count + 1, dtype=np.int32)
    return PackedTokens(
        np.concatenate([prompt.ids, prompt.ids[last]]),
        np.concatenate([prompt.offsets, offsets]),
        np.concatenate([prompt.positions, np.zeros(count, np.int32)]),
        prompt.longest,
    )
