"""Requests whose options have come before: all but their ids is known, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from decoding import _C
from decoding.common.arrays import Array, is_tensor
from decoding.generation.batching import TokenBatch
from decoding.generation.call import FIRST, Call, ResultForm
from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.generation.processors import texts
from decoding.generation.request import drawn_seed, random_numbers, sized
from decoding.generation.resolved import KEPT, ResolvedOptions, known
from decoding.generation.special_tokens import fill_id
from decoding.models.spec import ModelSpec
from decoding.token_model import TokenModel

NONE = -1  # is no id


class Prepared(NamedTuple):
    """A sentence that is ready to be submitted."""

    form: ResultForm
    prompt: Array  # int64 [1, P], as the caller gave it
    max_time: float  # seconds
    given: tuple[Any, ...]  # to _C.Engine.submit

    @classmethod
    def of(cls, call: Call) -> Prepared:
        """call: of one sentence."""
        [sub] = call.sub_batches
        request = sub.request
        given = (request.options, request.batch(stream=0))
        return cls(call.form, sub.prompt, request.max_time, given)


@dataclass(frozen=True)
class Template:
    """What requests with equal options have in common."""

    form: ResultForm
    options: _C.Request  # without texts
    prompt: TokenBatch | None  # of an encoder-decoder; None: the ids that are given
    longest: int  # ids for which all this has been checked
    vocab: int
    masked: int  # an id that does not count where no mask is given
    max_time: float  # seconds
    draws: bool  # each request has a seed of its own

    @classmethod
    def of(cls, call: Call, spec: ModelSpec) -> Template:
        """call: of one sentence, whose every token counts."""
        config, options, given = call.config, call.options, call.source or call.prompt
        [sub] = call.sub_batches
        random = random_numbers(config, call.seed, FIRST, call.strategy.rows_per_sentence)
        masked, pad, decoder = NONE, fill_id(config), spec.decoder
        if call.source is None and pad is not None and pad not in config.eos_token_id:
            masked = pad
        vocab = (spec.encoder or decoder).vocab
        if options.shared.reads_texts:  # as ids of the decoder
            vocab = min(vocab, decoder.vocab)
        return cls(
            call.form,
            options.shared.for_sentences(1, **sized(options, decoder, call.prompt), **random),
            None if call.source is None else call.prompt,
            given.width,
            vocab,
            masked,
            sub.request.max_time,
            draws=config.do_sample and config.seed is None,
        )

    def prepared(self, given: Any, mask: Any) -> Prepared | None:
        """For one sentence's ids and mask as submit() takes them. None for anything but at most
        `longest` ids that the model has, all of which count."""
        masked = self.masked if mask is None else NONE
        ids = _C.plain_ids(as_array(given), vocab=self.vocab, without=masked)
        if ids is None or ids.size > self.longest:
            return None
        if mask is not None:
            ones = _C.plain_ids(as_array(mask), vocab=2, without=0)
            if ones is None or ones.size != ids.size:
                return None
        prompt, source = (ids, None) if self.prompt is None else (self.prompt.ids, ids)
        given = (self._options(ids), source, prompt)
        return Prepared(self.form, prompt, self.max_time, given)

    def _options(self, ids: Array) -> _C.Request:
        own: dict[str, Any] = {"seed": drawn_seed()} if self.draws else {}
        if self.options.reads_texts:
            batch = TokenBatch(ids, None)
            own |= texts(batch, None) if self.prompt is None else texts(self.prompt, batch)
        return self.options.for_sentences(1, **own) if own else self.options


class Templates:
    """The templates of an engine's requests. The first request with some options is prepared like a
    call of generate(), and what was made of it serves all that follow: it depends on the options
    alone, and what has room for a sentence has room for a shorter one."""

    def __init__(self, model: TokenModel) -> None:
        self._model = model
        self._kept: dict[ResolvedOptions, Template] = {}

    def prepared(self, given: Any, mask: Any, keywords: Mapping[str, Any]) -> Prepared | None:
        """None for a sentence that has to be prepared like a call. given, mask, keywords: as
        submit() takes them."""
        if not keywords.keys() <= OPTIONS.keys():
            return None
        options = known(keywords, None, self._model.generation_config, self._model.spec)
        template = None if options is None else self._kept.get(options)
        return None if template is None else template.prepared(given, mask)

    def keep(self, call: Call, keywords: Mapping[str, Any]) -> None:
        """Makes a template of a call of one sentence without decoder_input_ids, where others can
        use it."""
        spec, before = self._model.spec, self._kept.get(call.options)
        if not keywords.keys() <= OPTIONS.keys() or not is_shared(call, spec):
            return
        template = Template.of(call, spec)
        if before is not None and before.longest >= template.longest:
            return
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[call.options] = template


def is_shared(call: Call, spec: ModelSpec) -> bool:
    """Whether what was made of a call serves all whose ids are as many or fewer."""
    options, config, given = call.options, call.config, call.source or call.prompt
    [sub] = call.sub_batches
    least_new = max(config.min_length, config.min_new_tokens or 0)
    return (
        given.mask is None
        and call.form.device == "cpu"
        and call.stop is None
        and not options.warnings
        and not options.per_row
        and least_new <= sub.request.steps  # else each call is warned
        and (call.source is not None or not counts_prompt(config, spec))
    )


def counts_prompt(config: GenerationConfig, spec: ModelSpec) -> bool:
    """Whether what a decoder-only model's prompt asks for depends on how long it is."""
    rotary = spec.decoder.rotary
    return (
        config.max_new_tokens is None
        or (config.min_new_tokens is None and config.min_length > 0)
        or config.forced_bos_token_id is not None
        or (rotary is not None and rotary.settled)
    )


def as_array(given: Any) -> Any:
    """A tensor of the CPU's as an array; anything else as it is."""
    if not is_tensor(given):
        return given
    try:
        return given.numpy()
    except (TypeError, RuntimeError):  # it is on a GPU, or of a type that NumPy does not have
        return given
