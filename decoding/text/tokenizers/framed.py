"""Tokenizers that cut text themselves, and put special tokens around its ids."""

from __future__ import annotations

from abc import abstractmethod

from decoding.text.rows import Rows
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.encoding import Row, Truncation


class FramedTokenizer(Tokenizer):
    """A tokenizer that puts special tokens around ids of texts."""

    @abstractmethod
    def cut(self, text: str) -> list[int]:
        """The ids of a text alone."""

    @abstractmethod
    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        """The ids of one text or two, with the special tokens that a source or prompt has."""

    def cut_batch(self, texts: list[str]) -> Rows:
        """cut() of many texts."""
        return Rows.of([self.cut(text) for text in texts])

    def encode_batch(self, texts: list[str]) -> Rows:
        return self.cut_batch(texts).framed(*self._around())

    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and behind a text."""
        text = -1
        ids = self.framed([text])
        at = ids.index(text)
        return ids[:at], ids[at + 1 :]

    def rows(
        self,
        text: str,
        pair: str | None,
        special: bool,
        limit: Truncation | None,
        *,
        offsets: bool = False,
    ) -> list[Row]:
        if offsets or (limit is not None and limit.stride is not None):
            what = "return_offsets_mapping" if offsets else "return_overflowing_tokens"
            raise NotImplementedError(
                f"{what} needs a tokenizer that the library `tokenizers` runs, as most models with "
                "a tokenizer.json have: what cuts this model's text does not say where"
            )
        first = self.cut(text)
        second = None if pair is None else self.cut(pair)
        if limit is not None:
            count = len(self.framed([], None if second is None else [])) if special else 0
            some, others = limit.lengths(len(first), None if second is None else len(second), count)
            first = limit.cut(first, some)
            second = None if second is None else limit.cut(second, others)
        ids = self.framed(first, second) if special else first + (second or [])
        return [Row(ids, [0] * len(ids))]
