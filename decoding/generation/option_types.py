"""The options of generate() as types, for editors, mypy and pyright.

decoding/generation/config.py has their defaults and ranges, docs/options.md their meaning; a test
compares the three. None switches an option off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

from decoding.common.progress import Event, Report


class Numbers(Protocol):
    """An array of NumPy's or a tensor of torch's."""

    def tolist(self) -> Any: ...


Number = float | int
Ids = Sequence[int] | Numbers
Id = int | Ids  # one, or several
# One value, or one for each row.
EachInt = int | Sequence[int] | Numbers
EachNumber = Number | Sequence[float] | Numbers


class SharedOptions(TypedDict, total=False):
    """The options that generate() and the methods for texts have."""

    # lengths
    max_length: int | None
    max_new_tokens: EachInt | None
    min_length: int | None
    min_new_tokens: int | None

    # search
    num_beams: int | None
    do_sample: bool | None
    num_beam_groups: int | None
    diversity_penalty: Number | None
    force_words_ids: Sequence[Sequence[int] | Sequence[Sequence[int]]] | None
    penalty_alpha: Number | None
    diversity_rate: Number | None

    # beams
    length_penalty: Number | None
    length_normalization: Literal["gnmt"] | None
    early_stopping: bool | Literal["never"] | None
    patience: Number | None
    coverage_penalty: Number | None

    # sampling
    temperature: EachNumber | None
    top_k: EachInt | None
    top_p: EachNumber | None
    top_h: Number | None
    min_p: Number | None
    typical_p: Number | None
    epsilon_cutoff: Number | None
    eta_cutoff: Number | None
    seed: EachInt | None

    # processors
    guidance_scale: Number | None
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[Sequence[Any]] | None
    encoder_repetition_penalty: Number | None
    repetition_penalty: Number | None
    frequency_penalty: Number | None
    presence_penalty: Number | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    bad_words_ids: Sequence[Ids] | None
    remove_invalid_values: bool | None
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: Id | None
    begin_suppress_tokens: Id | None
    renormalize_logits: bool | None

    # tokens
    eos_token_id: Id | None
    pad_token_id: int | None
    bos_token_id: int | None
    decoder_start_token_id: Id | None
    forced_bos_token_id: EachInt | None
    forced_eos_token_id: Id | None

    # stopping
    max_time: Number | None
    stop_strings: str | Sequence[str] | None

    # speed
    use_cache: bool | None


class SearchOptions(SharedOptions, total=False):
    """All options but return_dict_in_generate, on which the type of the result depends."""

    num_return_sequences: int | None
    output_scores: bool | None
    output_sequences_scores: bool | None
    output_logits: bool | None
    output_attentions: bool | None


class CallOptions(SearchOptions, total=False):
    """And the arguments of generate() that are passed by name: see Model.generate."""

    streamer: Any
    inputs: Any
    attention_mask: Any
    decoder_input_ids: Any
    tokenizer: Any
    shortlist: Any
    cancel: Event | None
    progress: bool | Report | None


class EngineOptions(SearchOptions, total=False):
    """Of the methods of Engine."""

    logits_processor: Any
    stopping_criteria: Any
    prefix_allowed_tokens_fn: Any
    streamer: Any
    shortlist: Any
    progress: bool | Report | None


class EngineGenerateOptions(EngineOptions, total=False):
    """Of Engine.generate()."""

    return_dict_in_generate: bool | None


class SubmitOptions(EngineOptions, total=False):
    """Of Engine.submit()."""

    inputs: Any
    decoder_input_ids: Any
    tokenizer: Any
    cancel: Event | None
    priority: int
    deadline: Number | None
    stream: bool
    salt: int


class FunctionOptions(CallOptions, total=False):
    """Of decoding.generate(), which takes them by name alone."""

    logits_processor: Any
    stopping_criteria: Any
    prefix_allowed_tokens_fn: Any


class GenerateOptions(SearchOptions, total=False):
    """The options of generate(): `options: decoding.GenerateOptions = {"num_beams": 4}`."""

    return_dict_in_generate: bool | None


class TextOptions(SharedOptions, total=False):
    """What all methods for texts take."""

    generation_config: Any
    cancel: Event | None


class CompleteOptions(TextOptions, total=False):
    """Of Model.complete()."""

    logits_processor: Any
    stopping_criteria: Any
    prefix_allowed_tokens_fn: Any
    streamer: Any
    progress: bool | Report | None


class ChatOptions(CompleteOptions, total=False):
    """Of Model.chat()."""

    num_return_sequences: int | None


class StreamTextOptions(TextOptions, total=False):
    """Of Model.stream_text(). Languages and shortlist: of a model that translates."""

    src_lang: str | None
    tgt_lang: str | None
    shortlist: Any


class TranslateOptions(StreamTextOptions, total=False):
    """Of Model.translate(): see decoding.text.translate.Translator."""

    alignments: bool
    batch_tokens: int
    progress: bool | Report | None
    target_prefix: str | Iterable[str]
    truncate: bool
    unique: bool
