"""The task of every engine: a model and a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoding.generation.config import GenerationConfig
from decoding.generation.resolve import checked, resolve
from decoding.models import ModelSpec
from decoding.models import load as load_checkpoint
from decoding.models.files import Directory
from decoding.text.languages import between
from decoding.text.tokenizers import Tokenizer, load_tokenizer

Ids = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Search:
    """Search options of a call. beams: 1 is greedy search. least, most: new tokens of a row; no end
    token comes before `least`. sample: (top_k, top_p) of sampling. scores: the answer has those of
    the best rows too."""

    beams: int
    most: int
    least: int = 0
    sample: tuple[int, float] | None = None
    scores: bool = False


@dataclass(frozen=True)
class Task:
    """A model's directory and the contents of its configuration files.

    config: its own options of generate(), with those that its languages need, which are `options`.
    languages: source and target, as the caller named them. trust_paths: as of decoding.load().
    """

    directory: Path
    spec: ModelSpec
    model_config: dict[str, Any]
    config: GenerationConfig
    options: dict[str, Any] = field(default_factory=dict)
    languages: tuple[str | None, str | None] = (None, None)
    trust_paths: bool = False

    @classmethod
    def read(cls, directory: Path, trust_paths: bool = False) -> Task:
        """Reads a directory. Raises ValueError for an encoder alone, and the errors of load()."""
        loaded = load_checkpoint(directory, trust_paths=trust_paths)
        if not isinstance(loaded.spec, ModelSpec):
            raise ValueError(f"{directory} is an encoder alone: it generates nothing to compare")
        config = resolve({}, None, loaded.generation_config)
        return cls(directory, loaded.spec, loaded.config, config, trust_paths=trust_paths)

    def between(self, src_lang: str | None, tgt_lang: str | None) -> Task:
        """The task for these languages. Raises ValueError for languages that the model lacks, and
        for missing ones that it needs."""
        _, options = between(self._tokenizer(), src_lang, tgt_lang, self.config)
        config = replace(
            self.config, **{name: checked(name, value)[name] for name, value in options.items()}
        )
        return replace(self, config=config, options=options, languages=(src_lang, tgt_lang))

    def load_tokenizer(self) -> Tokenizer:
        """This library's tokenizer. Raises ValueError or FileNotFoundError where there is none."""
        return between(self._tokenizer(), *self.languages, self.config)[0]

    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(Directory(self.directory, self.trust_paths), self.model_config)

    @property
    def has_encoder(self) -> bool:
        return self.spec.encoder is not None

    @property
    def pad(self) -> int:
        """The id that pads rows that are shorter than others."""
        ends = [token for token in self.config.eos_token_id if token >= 0]
        pad = self.config.pad_token_id
        return pad if pad is not None else (*ends, 0)[0]
