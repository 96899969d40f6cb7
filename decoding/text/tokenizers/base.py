"""The interface of tokenizers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, runtime_checkable


class Tokenizer(Protocol):
    """Converts between text and a model's token ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with the special tokens that a source or prompt has."""
        ...

    def encode_target(self, text: str) -> list[int]:
        """The ids that the model should generate for `text`, with EOS where the model has one."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of generated ids."""
        ...


@runtime_checkable
class Languages(Protocol):
    """A tokenizer of a model that must be told which languages it translates between."""

    def between(
        self, src_lang: str | None, tgt_lang: str | None, begins: Collection[int] = ()
    ) -> tuple[Tokenizer, dict[str, Any]]:
        """The tokenizer for these languages, and the options of generate() with which the model
        writes the target's.

        None: what the model's files say. begins: ids that its texts begin with anyway, which may be
        the target's code. Raises ValueError for a language that the model does not have, and where
        the target is said nowhere.
        """
        ...
