"""Translations that begin with given text, and what a model says of translations: scores of
searches that give none, and attentions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from decoding.common.arrays import Array
from decoding.engine.request import IGNORED
from decoding.generation.config import GenerationConfig
from decoding.text.tokenizers import Tokenizer


class ScoringModel(Protocol):
    """The members of decoding.Model that read given translations."""

    def score_arrays(
        self, input_ids: Any, labels: Any = None, *, decoder_start_token_id: Any = None
    ) -> Any: ...
    def attention_arrays(
        self, input_ids: Any, labels: Any, *, decoder_start_token_id: Any
    ) -> list[Array]: ...


class Line(NamedTuple):
    """A text to translate. max_new_tokens: its own; None: as the options say."""

    text: str
    target_prefix: str = ""
    max_new_tokens: int | None = None


def paired(lines: Iterable[str], prefix: str | Iterable[str]) -> Iterator[Line]:
    """Each line with its target's prefix. Raises ValueError where there are more of one."""
    if isinstance(prefix, str):
        yield from map(Line, lines, itertools.repeat(prefix))
        return
    for line, own in itertools.zip_longest(lines, prefix):
        if line is None or own is None:
            raise ValueError("target_prefix must be one text, or one for each line to translate")
        yield Line(line, own)


def start_ids(config: GenerationConfig) -> list[int]:
    """The token that a decoder starts with; empty where the model has none."""
    if config.decoder_start_token_id:
        return [config.decoder_start_token_id[0]]
    return [] if config.bos_token_id is None else [config.bos_token_id]


def prompt_ids(tokenizer: Tokenizer, config: GenerationConfig, prefix: str) -> list[int]:
    """The start token, the language's code where the model writes one, and a prefix."""
    ids = tokenizer.encode_target(prefix)
    while ids and ids[-1] in config.eos_token_id:
        ids.pop()
    return [*start_ids(config), *ids]


def sums(
    model: ScoringModel,
    config: GenerationConfig,
    sources: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    generated: Sequence[Sequence[int]],
) -> list[float]:
    """Of each row the sum of the log-probabilities that the model gives to its generated tokens.

    The model reads the tokens again: that costs less than all its logits would in memory. A token
    that the configuration forces at the beginning was no choice, and does not count.
    """
    labels = labels_of(prompts, generated)
    logprobs = model.score_arrays(
        sources, labels, decoder_start_token_id=start_ids(config)
    ).token_logprobs.tolist()
    forced = config.forced_bos_token_id is not None
    first = [max(len(prompt) - 1, int(forced)) for prompt in prompts]
    return [sum(row[at : len(ids)]) for row, at, ids in zip(logprobs, first, labels, strict=True)]


def attentions_of(
    model: ScoringModel,
    config: GenerationConfig,
    sources: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    generated: Sequence[Sequence[int]],
) -> list[Array]:
    """Of each row how much its generated tokens attend to the source, float32 [generated, source].

    The model reads the tokens again, all at once. That costs more than to keep the attentions of a
    search, but such a search shares its steps with no other.
    """
    labels = labels_of(prompts, generated)
    found = model.attention_arrays(sources, labels, decoder_start_token_id=start_ids(config))
    return [kept[len(prompt) - 1 :] for kept, prompt in zip(found, prompts, strict=True)]


def labels_of(
    prompts: Sequence[Sequence[int]], generated: Sequence[Sequence[int]]
) -> list[list[int]]:
    """What the decoder says in each row; where it says nothing, a label that does not count."""
    rows = zip(prompts, generated, strict=True)
    return [[*prompt[1:], *row] or [IGNORED] for prompt, row in rows]
