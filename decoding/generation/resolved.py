"""The options of a call, resolved and checked once for all calls that pass the same ones."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from decoding import _C
from decoding.common.arrays import Array
from decoding.generation import outputs
from decoding.generation.config import GenerationConfig
from decoding.generation.inputs import PER_ROW, check_attentions
from decoding.generation.lengths import DEFAULT_NEW
from decoding.generation.processors import processors
from decoding.generation.resolve import settled
from decoding.generation.special_tokens import check_tokens, end_ids, special_tokens
from decoding.generation.strategies import Strategy, choose
from decoding.generation.strategies.sampling import filters
from decoding.models.spec import ModelSpec

KEPT = 256  # sets of options
LONGEST = 1 << 14  # bytes of one that is kept, pickled: long lists seldom come again


@dataclass(frozen=True, eq=False)
class ResolvedOptions:
    """All that follows from the options of a call, whatever its texts are."""

    config: GenerationConfig
    strategy: Strategy
    shared: _C.Request  # for one sentence, but for what its texts and its place in the call decide
    per_row: tuple[str, ...]  # the options that have a value for each row, which `shared` lacks
    ends: int  # ids that end a row
    fill: int  # the token after a row's end
    keep_attentions: bool
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, config: GenerationConfig, spec: ModelSpec, warnings: tuple[str, ...] = ()
    ) -> ResolvedOptions:
        """Raises ValueError and NotImplementedError for what the model does not have."""
        vocab = spec.decoder.vocab
        check_tokens(config, vocab)
        check_attentions(config, spec.encoder is not None)
        strategy = choose(config)
        return cls(
            config,
            strategy,
            shared_request(config, strategy, vocab),
            tuple(name for name in PER_ROW if isinstance(getattr(config, name), tuple)),
            ends=len(end_ids(config, vocab)),
            fill=outputs.fill_value(config, strategy.competing),
            keep_attentions=keeps_attentions(config),
            warnings=warnings,
        )

    def for_sentences(self, chosen: Array) -> ResolvedOptions:
        """The options of the sentences `chosen`, int64 [n], of the call."""
        if not self.per_row:
            return self
        values: dict[str, Any] = {name: getattr(self.config, name) for name in self.per_row}
        values = {name: tuple(each[i] for i in chosen) for name, each in values.items()}
        return replace(self, config=replace(self.config, **values))


def keeps_attentions(config: GenerationConfig) -> bool:
    """Whether the attention to the source is kept, of all steps."""
    ranks = config.num_beams > 1 and config.coverage_penalty > 0
    return ranks or (config.return_dict_in_generate and config.output_attentions)


def shared_request(config: GenerationConfig, strategy: Strategy, vocab: int) -> _C.Request:
    shared = {
        **special_tokens(config, vocab),
        **processors(config),
        **{name: value for name, value in filters(config).items() if not isinstance(value, tuple)},
        **strategy.options,
    }
    return _C.Request(
        sentences=1,
        rows_per_sentence=strategy.rows_per_sentence,
        search=strategy.search,
        process=config.return_dict_in_generate and config.output_scores,
        **shared,
    )


Key = tuple[bytes, int, bool]
_known: dict[Key, ResolvedOptions] = {}


def key_of(
    keywords: Mapping[str, Any], base: Any, checkpoint: Mapping[str, Any], spec: ModelSpec
) -> Key | None:
    """By what options are known again: their values, so one that is changed in place is another
    one. None where a value cannot be pickled."""
    try:
        values = pickle.dumps((keywords, base, dict(checkpoint)), pickle.HIGHEST_PROTOCOL)
    except Exception:  # of any kind: the class of a value says how it is pickled
        return None
    return values, spec.decoder.vocab, spec.encoder is None


def known(
    keywords: Mapping[str, Any], base: Any, checkpoint: Mapping[str, Any], spec: ModelSpec
) -> ResolvedOptions | None:
    """Those of an earlier call with the same values, as resolved() takes them; None where it is not
    known any more."""
    key = key_of(keywords, base, checkpoint, spec)
    return None if key is None else _known.get(key)


def resolved(
    keywords: Mapping[str, Any], base: Any, checkpoint: Mapping[str, Any], spec: ModelSpec
) -> ResolvedOptions:
    """The options of a call to a model of this spec; its warnings are yet to be given.

    keywords, base, checkpoint, errors: as in resolve().
    """
    key = key_of(keywords, base, checkpoint, spec)
    found = None if key is None else _known.get(key)
    if found is None:
        found = resolved_anew(keywords, base, checkpoint, spec)
        if len(_known) >= KEPT:
            _known.clear()
        if key is not None and len(key[0]) <= LONGEST:
            _known[key] = found
    return found


def resolved_anew(
    keywords: Mapping[str, Any], base: Any, checkpoint: Mapping[str, Any], spec: ModelSpec
) -> ResolvedOptions:
    config, warnings = settled(keywords, base, checkpoint)
    if config.max_new_tokens is None and config.max_length is None:
        warnings.append(
            f"generate() ends at {DEFAULT_NEW} new tokens where neither the caller nor the "
            "checkpoint sets a length, as in transformers: pass max_new_tokens"
        )
    return ResolvedOptions.of(config, spec, tuple(warnings))
