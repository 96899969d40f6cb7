"""SentencePiece models with a vocabulary of the model's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from sentencepiece import SentencePieceProcessor

from decoding.models.files import short
from decoding.text.tokenizers.base import before_last
from decoding.text.tokenizers.framed import FramedTokenizer

BYTE = re.compile(r"<0x([0-9a-fA-F]{2})>")
WORD_START = "\u2581"  # sentencepiece writes it for the space before a word


class Pieces:
    """A SentencePiece model that splits text, and a vocabulary with the ids of its pieces.

    special: tokens that stand for themselves where a text has them, and are not part of the text
    that ids stand for. unk: the token of what the vocabulary does not have.
    """

    def __init__(
        self,
        model: SentencePieceProcessor,
        ids: Mapping[str, int],
        special: Iterable[str],
        unk: str,
    ) -> None:
        if unk not in ids:
            raise ValueError(f"the vocabulary has no {short(unk)}, which text needs")
        self.ids, self.special, self.unk = ids, set(special), unk
        self.tokens = {number: token for token, number in ids.items()}
        self._model = model
        longest_first = sorted(self.special, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")").split

    def cut(self, text: str) -> list[str]:
        tokens: list[str] = []
        for part in self._split(text):
            if part in self.special:
                tokens.append(part)
            elif part:
                tokens += self.cut_plain(part)
        return tokens

    def cut_plain(self, text: str) -> list[str]:
        """The pieces of text between special tokens."""
        tokens: list[str] = self._model.encode(text, out_type=str)
        return tokens

    def numbered(self, tokens: Iterable[str]) -> list[int]:
        unknown = self.ids[self.unk]
        return [self.ids.get(token, unknown) for token in tokens]

    def named(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids; an id without an entry counts as unknown."""
        return [self.tokens.get(int(number), self.unk) for number in ids]

    def settled(self, ids: Sequence[int]) -> int:
        """How many of the first ids have a text that ids behind them leave as it is: those before
        the last tokens of bytes, which are decoded together."""
        return before_last(
            ids,
            lambda number: (
                BYTE.fullmatch(token := self.tokens.get(number, self.unk)) is not None
                or token in self.special
            ),
        )

    def text(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        words, pieces, text_of = list[str](), list[str](), self.joined
        for token in self.named(ids):
            if token not in self.special:
                pieces.append(token)
            elif not skip_special_tokens:  # it belongs to no word
                words += [text_of(pieces), token]
                pieces, text_of = [], self.behind
        words.append(text_of(pieces))
        return "".join(words).replace(WORD_START, " ").strip()

    def behind(self, pieces: list[str]) -> str:
        """The text of pieces behind a special token, with the space before a word."""
        space = " " if pieces and pieces[0].startswith(WORD_START) else ""
        return space + self.joined(pieces)

    def joined(self, pieces: list[str]) -> str:
        text: str = self._model.decode_pieces(pieces)
        return text


class PieceTokenizer(FramedTokenizer):
    """A tokenizer with one vocabulary for input and output.

    end: what ends a text, begin: what begins it, between: what separates two: ids of special
    tokens.
    """

    def __init__(
        self,
        pieces: Pieces,
        end: Sequence[int],
        *,
        begin: Sequence[int] = (),
        between: Sequence[int] = (),
    ) -> None:
        self.pieces, self._begin, self._end = pieces, list(begin), list(end)
        self._between = list(between)

    @property
    def tokens(self) -> dict[int, str]:
        return self.pieces.tokens

    def cut(self, text: str) -> list[int]:
        return self.pieces.numbered(self.pieces.cut(text))

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        others = [] if second is None else self._between + second
        return self._begin + first + others + self._end

    def encode_target(self, text: str) -> list[int]:
        return self.framed(self.cut(text))

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.pieces.text(ids, skip_special_tokens)

    def settled(self, ids: Sequence[int]) -> int:
        return self.pieces.settled(ids)

    def source_pieces(self, text: str) -> list[str | None]:
        return self.target_pieces(self.framed(self.cut(text)))

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        """The pieces of ids; None for special tokens."""
        tokens = self.pieces.named(ids)
        return [None if token in self.pieces.special else token for token in tokens]
