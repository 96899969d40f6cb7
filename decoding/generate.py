"""The path of a call: options, rows, sub-batches through the engine, results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoding import outputs
from decoding.batching import (
    Array,
    Rows,
    as_table,
    check_ids,
    common_device,
    prompt_rows,
    source_rows,
    split,
)
from decoding.config import GenerationConfig
from decoding.models.spec import ModelSpec
from decoding.resolve import resolve
from decoding.search import Strategy, choose
from decoding.search.rules import fill_id, lengths, rules
from decoding.search.sentences import sentence_rules
from decoding.session import Results, Session, Work


def generate(
    session: Session,
    checkpoint: Mapping[str, Any],
    input_ids: Any,
    generation_config: Any,
    attention_mask: Any,
    decoder_input_ids: Any,
    options: Mapping[str, Any],
) -> Tensor | outputs.GenerateOutput:
    """See Model.generate. checkpoint: the model's generation_config.json."""
    config = resolve(options, generation_config, checkpoint)
    device = common_device(
        session.device,
        input_ids=input_ids,
        attention_mask=attention_mask,
        decoder_input_ids=decoder_input_ids,
    )
    source, prompt = read_inputs(session.spec, config, input_ids, attention_mask, decoder_input_ids)
    strategy = choose(config)
    vocab = session.spec.decoder.vocab
    length = lengths(config, prompt.width, prompt.longest, session.spec.decoder.positions)
    rule = rules(config, length, vocab)
    own = sentence_rules(config, length, prompt.width, len(prompt), strategy.rows)
    order_by = prompt.lengths if source is None else source.lengths
    scored = config.return_dict_in_generate and config.output_scores
    most = None if session.limits is None else session.limits.batch
    groups = split(order_by, strategy.rows, most, session.device.type)
    parts: list[tuple[Array, Results]] = []
    for chosen in groups:
        some = None if len(groups) == 1 else chosen
        work = Work(
            source=None if source is None else source.pack(some),
            prompt=prompt.pack(some),
            items=torch.from_numpy(chosen.astype(np.int32)),
            sentences=torch.from_numpy(own[chosen].view(np.uint8)),
            beams=strategy.rows,
            max_new=length.max_new,
            eos=len(config.eos_token_id),
            rules=rule,
            search=strategy.search,
            fill=outputs.fill_value(config, strategy.beams),
            scores=strategy.scores if scored else None,
        )
        parts.append((chosen, session.run(work)))
    found = results(config, strategy, parts, prompt, source is not None)
    return found if device.type == "cpu" else outputs.moved(found, device)


def read_inputs(
    spec: ModelSpec,
    config: GenerationConfig,
    input_ids: Any,
    attention_mask: Any,
    decoder_input_ids: Any,
) -> tuple[Rows | None, Rows]:
    """The encoder's rows, where there is one, and the decoder's."""
    if input_ids is None:
        if config.bos_token_id is None:
            raise ValueError("input_ids is missing, and there is no bos_token_id to begin with")
        input_ids = [[config.bos_token_id]]
    if spec.encoder is None:
        if decoder_input_ids is not None:
            raise ValueError("decoder_input_ids is for encoder-decoders: pass them as input_ids")
        pad, eos = fill_id(config), config.eos_token_id
        return None, prompt_rows(input_ids, attention_mask, spec.decoder.vocab, pad=pad, eos=eos)
    source = source_rows(input_ids, attention_mask, spec.encoder.vocab)
    positions = spec.encoder.positions
    if source.reach > positions:
        raise ValueError(
            f"input_ids has a row that reaches to position {source.reach}, the model has "
            f"{positions}: split or shorten it"
        )
    return source, decoder_rows(config, decoder_input_ids, len(source), spec.decoder.vocab)


def decoder_rows(config: GenerationConfig, ids: Any, batch: int, vocab: int) -> Rows:
    """An encoder-decoder's prompt: the start token, before the caller's ids if none has it."""
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
    table = np.empty((batch, 1), np.int64)
    table[:, 0] = starts
    if ids is None:
        return Rows(table, None)
    given, mask = as_table("decoder_input_ids", ids, fill=0, pad_left=True)
    if len(given) != batch or mask is not None:
        raise ValueError(
            f"decoder_input_ids must have {batch} rows, as input_ids, all of one length; "
            f"got {len(given)}"
        )
    check_ids("decoder_input_ids", given, vocab)
    started = (given[:, :1] == table).any()
    return Rows(given if started else np.concatenate([table, given], 1), None)


def results(
    config: GenerationConfig,
    strategy: Strategy,
    parts: outputs.Parts,
    prompt: Rows,
    encoder: bool,
) -> Tensor | outputs.GenerateOutput:
    longest = outputs.longest(parts, strategy.returned)
    sequences = outputs.sequences(parts, strategy.returned, longest, prompt.ids)
    if not config.return_dict_in_generate:
        return sequences
    steps = outputs.step_scores(parts, strategy.rows) if config.output_scores else None
    if not strategy.beams:
        plain = (
            outputs.GenerateEncoderDecoderOutput if encoder else outputs.GenerateDecoderOnlyOutput
        )
        return plain(sequences, scores=steps)
    beam = (
        outputs.GenerateBeamEncoderDecoderOutput
        if encoder
        else outputs.GenerateBeamDecoderOnlyOutput
    )
    scored = config.output_scores or config.output_sequences_scores
    return beam(
        sequences,
        sequences_scores=outputs.sequences_scores(parts, strategy.returned) if scored else None,
        scores=steps,
        beam_indices=outputs.beam_indices(parts, strategy.returned, strategy.rows, longest),
    )
