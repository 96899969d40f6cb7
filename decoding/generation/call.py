"""The path of a call: options, rows, sub-batches through the engine, results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoding.engine.session import Session, Work
from decoding.generation import outputs, processors
from decoding.generation.attentions import check_attentions
from decoding.generation.batching import Array, Packed, Rows, common_device, split
from decoding.generation.config import GenerationConfig
from decoding.generation.guidance import with_shadows
from decoding.generation.hooks import Hooks
from decoding.generation.inputs import (
    by_width,
    check_per_row,
    check_source_tokens,
    of_rows,
    read_inputs,
)
from decoding.generation.observer import Watch
from decoding.generation.resolve import resolve
from decoding.generation.results import Part
from decoding.generation.rules import check_tokens, end_ids, fill_id, lengths, rules
from decoding.generation.sentences import drawn_seed, sentence_rules
from decoding.generation.shortlist_tokens import needed_ids
from decoding.generation.stop_strings import StopTable, stop_table
from decoding.generation.strategies import Strategy, choose, sampling
from decoding.generation.streaming import Listener
from decoding.text.shortlist import Shortlist, as_shortlist


@dataclass(frozen=True)
class Given:
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


@dataclass(frozen=True)
class Call:
    """A call of generate(), checked."""

    session: Session
    config: GenerationConfig
    strategy: Strategy
    source: Rows | None
    prompt: Rows
    hooks: Hooks
    listener: Listener | None
    stop: StopTable | None
    shortlist: Shortlist | None
    device: torch.device  # of the results
    started: float = field(default_factory=time.monotonic)

    def run(self) -> Tensor | outputs.GenerateOutput:
        """Generates."""
        parts = []
        for chosen, prompt, work in self.works:
            if work.max_time is not None:
                passed = time.monotonic() - self.started
                work = replace(work, max_time=max(0.0, work.max_time - passed))
            parts.append(Part(chosen, prompt, self.session.run(work)))
        found = outputs.results(self.config, self.strategy, parts, self.source)
        return found if self.device.type == "cpu" else outputs.moved(found, self.device)

    @cached_property
    def works(self) -> list[tuple[Array, Array, Work]]:
        """The call's sub-batches: int64 [n], sentences of the call; [n, P], their prompts."""
        return list(self._works())

    def _works(self) -> Iterator[tuple[Array, Array, Work]]:
        most = None if self.session.limits is None else self.session.limits.batch
        groups = list(by_width(self.prompt, self.source is not None))
        watched = self.hooks or self.listener is not None
        if watched and (len(groups) > 1 or len(self.prompt) > (most or len(self.prompt))):
            raise ValueError(
                "functions and streamers look at all rows side by side: pass decoder_input_ids of "
                "one length, and no more rows than the limits' batch"
            )
        for group, prompt in groups:
            order_by = prompt.lengths if self.source is None else self.source.lengths[group]
            parts = split(order_by, self.strategy.rows, most, self.session.device.type)
            for part in [np.arange(len(group))] if watched else parts:
                some = prompt if len(part) == len(group) and len(parts) == 1 else prompt.only(part)
                yield group[part], some.ids, self._work(group[part], some)

    def _work(self, chosen: Array, prompt: Rows) -> Work:
        """One sub-batch. chosen: int64 [n], its sentences' places in the call."""
        whole = len(chosen) == len(self.prompt)
        source = self.source if self.source is None or whole else self.source.only(chosen)
        decoder, rows = self.session.spec.decoder, self.strategy.rows
        config = of_rows(self.config, chosen)
        turns = decoder.rotary
        within = turns.original if turns is not None and turns.settled else None
        length = lengths(config, prompt.width, prompt.lengths, decoder.positions, within)
        results = config.return_dict_in_generate
        keep_scores, keep_logits = (
            results and config.output_scores,
            results and config.output_logits,
        )
        wanted = processors.wanted(config) or config.contrastive
        processed = bool(self.hooks) or keep_scores or wanted
        warpers = sampling.warpers(config, processed=processed)
        controls = None
        if processed or warpers is not None:
            controls = processors.controls(config, length.min_new, decoder.vocab, prompt, source)
        fill = outputs.fill_value(config, self.strategy.beams)
        covering = config.coverage_penalty if self.strategy.beams else 0.0
        packed = None if source is None else source.pack()
        work = Work(
            source=packed,
            prompt=prompt.pack(),
            items=torch.from_numpy(chosen.astype(np.int32)),
            sentences=torch.from_numpy(
                sentence_rules(config, length, prompt.width, chosen, rows).view(np.uint8)
            ),
            beams=rows,
            max_new=length.max_new,
            eos=len(end_ids(config, decoder.vocab)),
            rules=rules(config, length, decoder.vocab),
            search=self.strategy.search,
            fill=fill,
            places=self.strategy.places,
            controls=controls,
            warpers=warpers,
            stop_table=None if self.stop is None else self.stop.table,
            stop_first=None if self.stop is None else self.stop.behind(prompt.ids),
            shortlist=None if packed is None else self._shortlisted(packed, config),
            max_time=config.max_time,
            attentions=covering > 0 or (results and config.output_attentions),
            coverage_penalty=covering,
            keep_scores=keep_scores,
            keep_logits=keep_logits,
            watch=self._watch(prompt, length.max_new + config.contrastive),
        )
        return with_shadows(work) if config.guidance_scale != 1 else work

    def _shortlisted(self, source: Packed, config: GenerationConfig) -> Tensor | None:
        """int32 [n], what may stand in a translation of any of these sentences."""
        if self.shortlist is None:
            return None
        needed = needed_ids(config, self.shortlist.target_ids)
        return torch.from_numpy(self.shortlist.ids_for(source.ids.numpy(), needed))

    def _watch(self, prompt: Rows, most: int) -> Watch | None:
        if not self.hooks and self.listener is None:
            return None
        pad = fill_id(self.config)
        return Watch(
            self.hooks,
            self.listener,
            prompt=torch.from_numpy(prompt.ids),
            rows=self.strategy.rows,
            most=most,
            fill=0 if pad is None else pad,
            competing=self.strategy.beams or self.config.contrastive,
            plain=self.config.num_beam_groups == 1 and not self.config.force_words_ids,
        )


def prepare(
    session: Session,
    checkpoint: Mapping[str, Any],
    given: Given,
    options: Mapping[str, Any],
    listener: Listener | None = None,
) -> Call:
    """Checks a call. checkpoint: the model's generation_config.json. listener: is told the tokens
    as they come.

    Raises what Model.generate() raises before anything runs.
    """
    config = resolve(options, given.generation_config, checkpoint)
    device = common_device(
        session.device,
        input_ids=given.input_ids,
        attention_mask=given.attention_mask,
        decoder_input_ids=given.decoder_input_ids,
    )
    source, prompt = read_inputs(
        session.spec, config, given.input_ids, given.attention_mask, given.decoder_input_ids
    )
    check_per_row(config, len(prompt))
    check_tokens(config, session.spec.decoder.vocab)
    if source is not None:
        check_source_tokens(config, source, session.spec.decoder.vocab)
    check_attentions(config, source is not None)
    if listener is not None:
        listener.check(config, len(prompt))
    if config.do_sample and config.seed is None:
        config = replace(config, seed=drawn_seed())
    hooks = Hooks(
        config, given.logits_processor, given.prefix_allowed_tokens_fn, given.stopping_criteria
    )
    config = hooks.without_replaced(config)
    stop = None
    if config.stop_strings:
        vocab = session.spec.decoder.vocab
        stop = stop_table(given.tokenizer, config.stop_strings, vocab, session.device)
    shortlist = as_shortlist(given.shortlist, session.spec, session.device.type)
    call = Call(
        session,
        config,
        choose(config),
        source,
        prompt,
        hooks,
        listener,
        stop,
        shortlist,
        device,
    )
    _ = call.works  # all of them are made, and so checked, before the first runs
    return call
