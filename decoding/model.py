"""The object that users work with: text in, text out, beside ids in, ids out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from decoding.text.embed import Pooling, embed, read_pooling
from decoding.text.translate import translate
from decoding.token_model import TokenModel


class Model(TokenModel):
    """A model that decoding.load() has made. Its methods for ids are TokenModel's.

    With an encoder and a decoder it has translate(); an encoder alone (BERT) has embed().
    """

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> Tensor:
        """Sentence embeddings, float32 [B, H] on the CPU, of a sentence-transformers directory:
        hidden states, pooled and normalised as its modules.json says.

        truncate: cut the end of a text that is too long, instead of raising ValueError. Raises
        FileNotFoundError or ValueError where the directory defines no pooling, NotImplementedError
        for a model that generates.
        """
        return embed(self._encoder, self.tokenizer, self._pooling, texts, truncate=truncate)

    @cached_property
    def _pooling(self) -> Pooling:
        if self._files is None:
            raise ValueError("a model loaded from memory has no directory with a modules.json")
        return read_pooling(self._files)

    def translate(self, texts: Sequence[str], **options: Any) -> Any:
        """Translates each text: a list of one str a text, or with n_best of one list of
        Hypothesis(text, score) a text. Options: see decoding.text.translate.Translator."""
        return translate(self, list(texts), **options)
