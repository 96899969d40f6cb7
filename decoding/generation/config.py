"""The options of generate(): their names, defaults and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from decoding.generation import checks
from decoding.generation.checks import flag, ids, number, per_row, whole
from decoding.generation.option_names import naming_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from decoding.generation.option_types import GenerateOptions

Words = Sequence[Sequence[int]]


def option(
    check: checks.Check, default: Any = None, off: Any = ..., engine: str | None = None
) -> Any:
    """A field of GenerationConfig. None in it means: not set.

    default: where nobody sets it; off: the value for the keyword None, unless it is the default.
    engine: "processor" or "filter" where _C.Request takes the option as it is, by the same name.
    """
    off = default if off is ... else off
    metadata = {"check": check, "default": default, "off": off, "engine": engine}
    return field(default=None, metadata=metadata)


def processor(check: checks.Check, default: Any) -> Any:
    return option(check, default, engine="processor")


def sampling_filter(check: checks.Check, default: Any = None, off: Any = ...) -> Any:
    return option(check, default, off, engine="filter")


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """The options of generate(), with the names and the meaning of Hugging Face transformers.

    docs/options.md has every option's meaning. A value of None means "not set": the checkpoint's
    own generation_config.json decides, then the default written here. `resolve` returns one in
    which everything is set. Where an id may be given as a number, a list of them is meant:
    eos_token_id=2 is eos_token_id=[2]. Where a list of numbers is allowed for a number, it has one
    for each row of the batch.
    """

    # lengths; with P the width of the prompt, padding included (1 for an encoder-decoder)
    max_length: int | None = option(whole(1))  # P + tokens generated; nobody set one: P + 20
    max_new_tokens: int | Sequence[int] | None = option(per_row(whole(1)))  # wins over max_length
    min_length: int = option(whole(0), 0)  # P + tokens before an EOS may come
    min_new_tokens: int | None = option(whole(0))  # wins over min_length

    # search
    num_beams: int = option(whole(1, 2**24), 1)  # more fit no memory
    do_sample: bool = option(flag, False)
    num_return_sequences: int = option(whole(1), 1)
    num_beam_groups: int = option(whole(1), 1)  # this to penalty_alpha: Hugging Face's until 4.x
    diversity_penalty: float = option(number(least=0), 0.0)  # between groups
    force_words_ids: Sequence[Words] = option(checks.word_choices, ())
    penalty_alpha: float = option(number(least=0, most=1), 0.0)  # contrastive search
    diversity_rate: float = option(number(least=0), 0.0)  # ours: between siblings

    # beams
    length_penalty: float = option(number(), 1.0)  # a in S / G^a
    length_normalization: str | None = option(checks.normalization)  # ours: "gnmt"
    early_stopping: bool | str = option(checks.stopping, False)  # or "never"
    patience: float = option(number(above=0), 1.0)  # ours, from CTranslate2
    coverage_penalty: float = option(number(least=0), 0.0)  # the same

    # sampling
    temperature: float | Sequence[float] = sampling_filter(per_row(number(above=0)), 1.0)
    top_k: int | Sequence[int] = sampling_filter(per_row(whole(0)), 50, off=0)  # contrastive, too
    top_p: float | Sequence[float] = sampling_filter(per_row(number(above=0, most=1)), 1.0)
    top_h: float | None = sampling_filter(number(above=0, most=1))
    min_p: float = sampling_filter(number(least=0, most=1), 0.0)
    typical_p: float = sampling_filter(number(above=0, most=1), 1.0)
    epsilon_cutoff: float = sampling_filter(number(least=0, below=1), 0.0)
    eta_cutoff: float = sampling_filter(number(least=0, below=1), 0.0)
    seed: int | Sequence[int] | None = option(per_row(whole(0, 2**64 - 1)))  # ours; None: drawn

    # processors
    guidance_scale: float = processor(number(), 1.0)
    sequence_bias: Sequence[tuple[Sequence[int], float]] = processor(checks.biases, ())
    encoder_repetition_penalty: float = processor(number(above=0), 1.0)
    repetition_penalty: float = processor(number(above=0), 1.0)
    frequency_penalty: float = processor(number(), 0.0)  # this and the next: OpenAI's, vLLM's
    presence_penalty: float = processor(number(), 0.0)
    no_repeat_ngram_size: int = processor(whole(0), 0)
    encoder_no_repeat_ngram_size: int = processor(whole(0), 0)
    bad_words_ids: Words = option(checks.words, ())
    remove_invalid_values: bool = processor(flag, False)
    exponential_decay_length_penalty: tuple[int, float] | None = option(checks.decay)
    suppress_tokens: Sequence[int] = processor(ids, ())
    begin_suppress_tokens: Sequence[int] = processor(ids, ())
    renormalize_logits: bool = option(flag, False)  # published Marian files have it

    # tokens
    eos_token_id: Sequence[int] = option(ids, ())  # an id below 0 never comes
    pad_token_id: int | None = option(whole())  # None: the first EOS is used
    bos_token_id: int | None = option(whole())
    decoder_start_token_id: Sequence[int] = option(ids, ())  # one, or one per row; none: bos
    forced_bos_token_id: int | Sequence[int] | None = option(per_row(whole()))  # where P is 1
    forced_eos_token_id: Sequence[int] = option(ids, ())  # token at max_length

    # stopping
    max_time: float | None = option(number(least=0))  # seconds
    stop_strings: Sequence[str] = option(checks.strings, ())

    # results
    return_dict_in_generate: bool = option(flag, False)
    output_scores: bool = option(flag, False)  # of every step, and of sequences with beams
    output_sequences_scores: bool = option(flag, False)  # ours: the latter alone, which is cheap
    output_logits: bool = option(flag, False)
    output_attentions: bool = option(flag, False)
    use_cache: bool = option(flag, True)  # accepted; the engine always has its cache

    if TYPE_CHECKING:  # a field holds the checked form of a value; many forms may be given

        def __init__(self, **options: Unpack[GenerateOptions]) -> None: ...

    @property
    def contrastive(self) -> bool:
        """Whether penalty_alpha has an effect: Hugging Face's conditions."""
        plain = self.num_beams == 1 and not self.do_sample
        return plain and self.penalty_alpha > 0 and isinstance(self.top_k, int) and self.top_k > 1


GenerationConfig.__init__ = naming_arguments({})(GenerationConfig.__init__)  # type: ignore[method-assign]

OPTIONS = {f.name: f.metadata for f in fields(GenerationConfig)}


def engine_options(config: GenerationConfig, kind: str) -> dict[str, Any]:
    """The arguments of _C.Request that are options of that kind; those that are None are off."""
    given = {name: getattr(config, name) for name in OPTIONS if OPTIONS[name]["engine"] == kind}
    return {name: value for name, value in given.items() if value is not None}
