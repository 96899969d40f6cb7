"""SentencePiece models with a vocabulary of the model's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from sentencepiece import SentencePieceProcessor

from decoding.common.arrays import Array
from decoding.models.files import short
from decoding.text.rows import Rows
from decoding.text.tokenizers.base import before_last
from decoding.text.tokenizers.framed import FramedTokenizer

BYTE = re.compile(r"<0x([0-9a-fA-F]{2})>")
WORD_START = "\u2581"  # sentencepiece writes it for the space before a word


TEXTS = 64  # that a thread is worth starting for
THREADS = 8  # more wait for who collects what they made


def threads_for(texts: int) -> int:
    """Threads of the library for so many texts."""
    return max(1, min(len(os.sched_getaffinity(0)), texts // TEXTS, THREADS))


class Pieces:
    """A SentencePiece model that splits text, and a vocabulary with the ids of its pieces.

    special: tokens that stand for themselves where a text has them, and are not part of the text
    that ids stand for. unk: the token of what the vocabulary does not have. added: tokens that
    stand for themselves and are part of that text.
    """

    def __init__(
        self,
        model: SentencePieceProcessor,
        ids: Mapping[str, int],
        special: Iterable[str],
        unk: str,
        added: Iterable[str] = (),
    ) -> None:
        if unk not in ids:
            raise ValueError(f"the vocabulary has no {short(unk)}, which text needs")
        self.ids, self.special, self.unk, self.added = ids, set(special), unk, set(added)
        self.tokens = {number: token for token, number in ids.items()}
        self._model = model
        self._whole = self.special | self.added
        longest_first = sorted(self._whole, key=len, reverse=True)
        pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._split, self._has_special = pattern.split, pattern.search

    def with_tokens(self, marks: Mapping[str, bool]) -> Pieces:
        """The same with more tokens that stand for themselves; new ones follow all others. marks:
        whether each is special."""
        if marks.keys() <= self.special:
            return self
        first = 1 + max(self.ids.values())
        new = (text for text in marks if text not in self.ids)
        ids = {**self.ids, **{text: first + i for i, text in enumerate(new)}}
        special = self.special | {text for text, is_special in marks.items() if is_special}
        return type(self)(self._model, ids, special, self.unk, marks.keys() - special)

    def is_plain(self, text: str) -> bool:
        """Whether all of a text, or of lines of it, is cut by the model."""
        return not self._has_special(text)

    def numbered_batch(self, texts: list[str]) -> Rows:
        """The ids of cut(text) of each text."""
        if len(texts) == 1:  # without the library's threads
            return Rows.of([self.numbered(self.cut(texts[0]))])
        rows = self._model.encode(texts, out_type=int, num_threads=threads_for(len(texts)))
        found = Rows.of(rows)
        unknown = found.ids == self._model.unk_id()  # the vocabulary may have its letters
        odd = set(np.searchsorted(found.offsets, unknown.nonzero()[0], "right") - 1)
        if not self.is_plain("\n".join(["", *texts])):
            odd.update(i for i, text in enumerate(texts) if not self.is_plain("\n" + text))
        at = sorted(int(i) for i in odd)
        others = Rows.of([self.numbered(self.cut(texts[i])) for i in at])
        return Rows(self._numbers[found.ids], found.offsets).replaced(at, others)

    @cached_property
    def _numbers(self) -> Array:
        """int32, our id of each of the model's."""
        pieces = self._model.id_to_piece(list(range(self._model.get_piece_size())))
        return np.array(self.numbered(pieces), np.int32)

    def cut(self, text: str) -> list[str]:
        tokens: list[str] = []
        for part in self._split(text):
            if part in self._whole:
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
            if token not in self._whole:
                pieces.append(token)
            elif token in self.added or not skip_special_tokens:  # it belongs to no word
                words += [text_of(pieces), token]
                pieces, text_of = [], self.behind
        words.append(text_of(pieces))
        return "".join(words).replace(WORD_START, " ").strip()

    def texts(self, rows: Rows, skip_special_tokens: bool) -> list[str]:
        """text() of many rows."""
        if not skip_special_tokens or len(rows) == 1 or self.added:
            return [self.text(ids, skip_special_tokens) for ids in rows.lists()]
        at = self._places(rows.ids)
        kept = Rows(at, rows.offsets).kept(self._in_text[at])
        there = kept.lengths.nonzero()[0].tolist()
        pieces = [row for row in kept.cut(self._token_texts[kept.ids]) if row]
        found = self._model.decode(pieces, num_threads=threads_for(len(pieces))) if pieces else []
        texts = [""] * len(rows)
        for i, text in zip(there, found, strict=True):
            texts[i] = text.replace(WORD_START, " ").strip()
        return texts

    def _places(self, ids: Array) -> Array:
        """Where the tokens of ids, int32 [n], stand in the arrays below."""
        known, count = self._known, len(self._known)
        if known[-1] == count - 1:  # all from 0 on, as nearly always
            return np.minimum(ids.view(np.uint32), count)
        at = np.searchsorted(known, ids)
        return np.where(known[np.minimum(at, count - 1)] == ids, at, count)

    @cached_property
    def _known(self) -> Array:
        """int64 [V], all ids, ascending."""
        return np.array(sorted(self.tokens))

    @cached_property
    def _token_texts(self) -> Array:
        """str [V + 1], their tokens; the last is that of an id without an entry."""
        return np.array([*self.named(self._known), self.unk], object)

    @cached_property
    def _in_text(self) -> Array:
        """bool [V + 1], whether a token is part of the text that ids stand for."""
        return np.array([token not in self.special for token in self._token_texts])

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

    def cut_batch(self, texts: list[str]) -> Rows:
        return self.pieces.numbered_batch(texts)

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        others = [] if second is None else self._between + second
        return self._begin + first + others + self._end

    def add_tokens(self, marks: Mapping[str, bool]) -> None:
        """See `Pieces.with_tokens`."""
        self.pieces = self.pieces.with_tokens(marks)
        self.tokens_changed()

    def encode_target(self, text: str) -> list[int]:
        return self.framed(self.cut(text))

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.pieces.text(ids, skip_special_tokens)

    def encode_target_batch(self, texts: list[str]) -> Rows:
        return self.encode_batch(texts)

    def texts_of(self, rows: Rows, skip_special_tokens: bool) -> list[str]:
        return self.pieces.texts(rows, skip_special_tokens)

    def settled(self, ids: Sequence[int]) -> int:
        return self.pieces.settled(ids)

    def source_pieces(self, text: str) -> list[str | None]:
        return self.target_pieces(self.framed(self.cut(text)))

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        """The pieces of ids; None for special tokens."""
        tokens = self.pieces.named(ids)
        return [None if token in self.pieces.special else token for token in tokens]
