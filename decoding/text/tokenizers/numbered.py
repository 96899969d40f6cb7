"""Tokenizers of toolkits that list the pieces in a file: fairseq's and OpenNMT-py's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.cutters import Cutter
from decoding.text.tokenizers.framed import FramedTokenizer

UNK, EOS = "<unk>", "</s>"


class NumberedTokenizer(FramedTokenizer):
    """source, target: the cutter of text, and the ids of the pieces.

    marks: tokens that are no part of a text. source_end: the model reads EOS behind a text.
    """

    def __init__(
        self,
        source: tuple[Cutter, Mapping[str, int]],
        target: tuple[Cutter, Mapping[str, int]],
        *,
        marks: frozenset[str],
        source_end: bool,
    ) -> None:
        self._source, self._source_ids = source
        self._target, self._target_ids = target
        for ids in (self._source_ids, self._target_ids):
            if UNK not in ids:
                raise ValueError(f"the vocabulary has no {UNK!r}, which text needs")
        self._marks, self._end = marks, [EOS] if source_end else []
        self._tokens = {number: token for token, number in self._target_ids.items()}

    @property
    def tokens(self) -> Mapping[int, str]:
        return self._tokens

    def get_vocab(self) -> Mapping[str, int]:
        return self._source_ids

    def cut(self, text: str) -> list[int]:
        return numbers(self._source.cut(text), self._source_ids)

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        return [*first, *(second or []), *numbers(self._end, self._source_ids)]

    def for_target(self) -> Tokenizer:
        target = copy(self)
        target._source, target._source_ids = self._target, self._target_ids
        target._end = [EOS]
        return target

    def encode_target(self, text: str) -> list[int]:
        """Ids in the target's vocabulary, ended by EOS."""
        return numbers([*self._target.cut(text), EOS], self._target_ids)

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of ids of the target's vocabulary; unknown ones are written as <unk>."""
        tokens = self._named(ids)
        if skip_special_tokens:
            tokens = [token for token in tokens if token not in self._marks]
        return self._target.join(tokens)

    def settled(self, ids: Sequence[int]) -> int:
        return len(ids) if self._target.appends else 0

    def source_pieces(self, text: str) -> list[str | None]:
        """The piece of each id of encode(); None for special tokens."""
        return [*self._source.marked(self._source.cut(text)), *(None for _ in self._end)]

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        """The pieces of generated ids; None for special tokens."""
        tokens = self._named(ids)
        marked = self._target.marked(tokens)
        return [
            None if token in self._marks else piece
            for token, piece in zip(tokens, marked, strict=True)
        ]

    def _named(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens.get(int(number), UNK) for number in ids]


def numbers(pieces: Sequence[str], ids: Mapping[str, int]) -> list[int]:
    return [ids.get(piece, ids[UNK]) for piece in pieces]
