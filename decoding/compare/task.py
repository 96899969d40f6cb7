"""What is asked of every engine: a model, its text, a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoding.generation.config import GenerationConfig
from decoding.generation.resolve import checked, resolve
from decoding.models import ModelSpec
from decoding.models import load as load_checkpoint
from decoding.text.languages import between
from decoding.text.tokenizers import Tokenizer, load_tokenizer

Ids = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Search:
    """beams: one is greedy search. least, most: new tokens of a row; before `least` no end token
    comes. sample: draws, from top_k and top_p. scores: of the best rows are wanted too."""

    beams: int
    most: int
    least: int = 0
    sample: tuple[int, float] | None = None
    scores: bool = False


@dataclass(frozen=True)
class Task:
    """A model's directory, and what its files say.

    config: its own options of generate(), with those that its languages need, which are `options`.
    languages: of source and target, as the caller named them.
    """

    directory: Path
    spec: ModelSpec
    model_config: dict[str, Any]
    config: GenerationConfig
    options: dict[str, Any] = field(default_factory=dict)
    languages: tuple[str | None, str | None] = (None, None)

    @classmethod
    def read(cls, directory: Path) -> Task:
        """Raises ValueError for an encoder alone, and what decoding.load raises."""
        loaded = load_checkpoint(directory)
        if not isinstance(loaded.spec, ModelSpec):
            raise ValueError(f"{directory} is an encoder alone: it generates nothing to compare")
        config = resolve({}, None, loaded.generation_config)
        return cls(directory, loaded.spec, loaded.config, config)

    def between(self, src_lang: str | None, tgt_lang: str | None) -> Task:
        """The same for these languages. Raises ValueError for such as the model does not have, and
        where it must be told and is not."""
        tokenizer = load_tokenizer(self.directory, self.model_config)
        _, options = between(tokenizer, src_lang, tgt_lang, self.config)
        config = replace(
            self.config, **{name: checked(name, value)[name] for name, value in options.items()}
        )
        return replace(self, config=config, options=options, languages=(src_lang, tgt_lang))

    def load_tokenizer(self) -> Tokenizer:
        """Our own. Raises ValueError or FileNotFoundError where there is none."""
        tokenizer = load_tokenizer(self.directory, self.model_config)
        return between(tokenizer, *self.languages, self.config)[0]

    @property
    def has_encoder(self) -> bool:
        return self.spec.encoder is not None

    @property
    def pad(self) -> int:
        """What fills rows that are shorter than others."""
        ends = [token for token in self.config.eos_token_id if token >= 0]
        pad = self.config.pad_token_id
        return pad if pad is not None else (*ends, 0)[0]
