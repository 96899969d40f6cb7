"""The tokens of a tokenizer, and those among them that are special."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

from tokenizers import AddedToken

from decoding.text.tokenizers.settings import NAMES, TokenizerSettings


class Setting:
    """A field of TokenizerSettings as an attribute of the tokenizer, which may be set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: Vocabulary | None, owner: type | None = None) -> Any:
        return self if tokenizer is None else getattr(tokenizer.settings, self.name)

    def __set__(self, tokenizer: Vocabulary, value: Any) -> None:
        tokenizer.settings = replace(tokenizer.settings, **{self.name: value})


class SpecialToken:
    """A special token's text as an attribute of the tokenizer; None where it has no such token."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, tokenizer: None, owner: type | None = None) -> SpecialToken: ...
    @overload
    def __get__(self, tokenizer: Vocabulary, owner: type | None = None) -> str | None: ...
    def __get__(
        self, tokenizer: Vocabulary | None, owner: type | None = None
    ) -> SpecialToken | str | None:
        return self if tokenizer is None else tokenizer.settings.special_tokens.get(self.name)

    def __set__(self, tokenizer: Vocabulary, text: str | None) -> None:
        if text is not None and text not in tokenizer.get_vocab():
            raise ValueError(f"{self.name}={text!r} is no token of the vocabulary")
        others = dict(tokenizer.settings.special_tokens)
        others.pop(self.name, None)
        found = others if text is None else {**others, self.name: text}
        ordered = {name: found[name] for name in NAMES if name in found}
        tokenizer.settings = replace(tokenizer.settings, special_tokens=ordered)


class SpecialTokenId:
    """The id of a special token, in the same way."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.removesuffix("_id")

    @overload
    def __get__(self, tokenizer: None, owner: type | None = None) -> SpecialTokenId: ...
    @overload
    def __get__(self, tokenizer: Vocabulary, owner: type | None = None) -> int | None: ...
    def __get__(
        self, tokenizer: Vocabulary | None, owner: type | None = None
    ) -> SpecialTokenId | int | None:
        if tokenizer is None:
            return self
        text = tokenizer.settings.special_tokens.get(self.name)
        return None if text is None else tokenizer.get_vocab().get(text)

    def __set__(self, tokenizer: Vocabulary, number: int | None) -> None:
        text = None if number is None else tokenizer.convert_ids_to_tokens(number)
        if number is not None and text is None:
            raise ValueError(f"{self.name}_id={number} is no id of the vocabulary")
        setattr(tokenizer, self.name, text)


class Vocabulary(ABC):
    """Tokens, their ids and the settings of a tokenizer, as transformers' tokenizers have them.

    settings: what its files say; the attributes below are its fields, and may be set.
    """

    settings: TokenizerSettings = TokenizerSettings()

    bos_token, bos_token_id = SpecialToken(), SpecialTokenId()
    eos_token, eos_token_id = SpecialToken(), SpecialTokenId()
    unk_token, unk_token_id = SpecialToken(), SpecialTokenId()
    sep_token, sep_token_id = SpecialToken(), SpecialTokenId()
    pad_token, pad_token_id = SpecialToken(), SpecialTokenId()
    cls_token, cls_token_id = SpecialToken(), SpecialTokenId()
    mask_token, mask_token_id = SpecialToken(), SpecialTokenId()
    chat_template, model_max_length = Setting(), Setting()
    padding_side, truncation_side = Setting(), Setting()

    @property
    @abstractmethod
    def tokens(self) -> Mapping[int, str]:
        """The tokens by their ids; of the target where there are two vocabularies."""

    def __repr__(self) -> str:
        special = ", ".join(f"{name}={text!r}" for name, text in self.special_tokens_map.items())
        return f"{type(self).__name__}({len(self)} tokens, {special})"

    def get_vocab(self) -> Mapping[str, int]:
        """Ids by token; of the source where there are two vocabularies."""
        return self._ids

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: number for number, token in self.tokens.items()}

    def whole_tokens(self, added: Sequence[AddedToken], extra: bool) -> dict[str, bool]:
        """Tokens that stand for themselves wherever a text has them, and whether each is special:
        named ones are, whatever their flag; with `extra` also special ones without a name."""
        found = {token.content: token.special for token in added}
        named = self.settings.special_tokens.values()
        special = [text for text in self.all_special_tokens if text]
        counted = [text for text in special if extra or text in named or text not in found]
        return found | dict.fromkeys(counted, True)

    def tokens_changed(self) -> None:
        """Forgets what was kept of the tokens."""
        for name in ("tokens", "_ids"):
            vars(self).pop(name, None)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, without those that were added to the vocabulary."""
        return len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or of each; that of unk_token for one that the vocabulary lacks."""
        if isinstance(tokens, str):
            return self.get_vocab().get(tokens, self.unk_token_id)
        return [self.convert_tokens_to_ids(token) for token in tokens]

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str | None: ...
    @overload
    def convert_ids_to_tokens(
        self, ids: Sequence[int], skip_special_tokens: bool = False
    ) -> list[str | None]: ...
    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> Any:
        """The token of an id, or of each; None for one that the vocabulary lacks."""
        if isinstance(ids, int):
            return self.tokens.get(ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [self.tokens.get(int(number)) for number in ids if int(number) not in skipped]

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The texts of the special tokens that have names."""
        return dict(self.settings.special_tokens)

    @property
    def all_special_tokens(self) -> list[str]:
        """The texts of all special tokens, each once."""
        named = self.settings.special_tokens.values()
        return list(dict.fromkeys([*named, *self.settings.extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        vocab = self.get_vocab()
        return [vocab[token] for token in self.all_special_tokens if token in vocab]
