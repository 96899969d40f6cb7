"""Splits text into pieces of a vocabulary, and joins them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from sentencepiece import SentencePieceProcessor

from decoding.models.files import ModelFileError, short
from decoding.text.tokenizers.backend import reading
from decoding.text.tokenizers.files import read_lines
from decoding.text.tokenizers.pieces import WORD_START

MORE = "@@"  # what ends a piece that is not the last of its word
WORD_END = "</w>"  # what ends the last symbol of a word in a list of merges


class Cutter(Protocol):
    """appends: the text of pieces goes on with that of pieces behind them."""

    appends: bool

    def cut(self, text: str) -> list[str]: ...

    def join(self, pieces: Sequence[str]) -> str: ...

    def marked(self, pieces: Iterable[str]) -> list[str]:
        """The pieces, with WORD_START before those that begin a word."""
        ...


class Words:
    """For text that is split already: its pieces are separated by spaces."""

    appends = True

    def cut(self, text: str) -> list[str]:
        return text.split()

    def join(self, pieces: Sequence[str]) -> str:
        return " ".join(pieces)

    def marked(self, pieces: Iterable[str]) -> list[str]:
        return [WORD_START + piece for piece in pieces]


class SentencePieces:
    appends = True

    def __init__(self, model: SentencePieceProcessor) -> None:
        self._model = model

    def cut(self, text: str) -> list[str]:
        pieces: list[str] = self._model.encode(text, out_type=str)
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        return "".join(pieces).replace(WORD_START, " ").strip()

    def marked(self, pieces: Iterable[str]) -> list[str]:
        return list(pieces)


class BytePairs:
    """Byte-pair encoding with the files of subword-nmt (Sennrich et al. 2016) and fastBPE.

    codes: a merge in each line, most frequent first; fastBPE adds how often it was seen.
    vocabulary: pieces that occur; single letters among them need no merge.
    """

    appends = True

    def __init__(self, codes: Path, vocabulary: Iterable[str]) -> None:
        merges = read_merges(codes)
        symbols = {part for pair in merges for part in (*pair, "".join(pair))}
        for piece in vocabulary:
            symbols.add(piece.removesuffix(MORE) if piece.endswith(MORE) else piece + WORD_END)
        unknown = "<unk>"
        ids = {symbol: number for number, symbol in enumerate([unknown, *sorted(symbols)])}
        with reading(codes):
            model = tokenizers.models.BPE(
                vocab=ids, merges=merges, unk_token=unknown, end_of_word_suffix=WORD_END
            )
            self._backend = tokenizers.Tokenizer(model)
        self._backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()

    def cut(self, text: str) -> list[str]:
        symbols = self._backend.encode(text).tokens
        return [s.removesuffix(WORD_END) if s.endswith(WORD_END) else s + MORE for s in symbols]

    def join(self, pieces: Sequence[str]) -> str:
        return (" ".join(pieces) + " ").replace(MORE + " ", "").strip()

    def marked(self, pieces: Iterable[str]) -> list[str]:
        found, starts = list[str](), True
        for piece in pieces:
            found.append(WORD_START * starts + piece)
            starts = not piece.endswith(MORE)
        return found


class Moses:
    """Splits text into words with the Moses tokenizer, and words into pieces with `inner`."""

    appends = False  # a quotation mark's spaces depend on the words behind it

    def __init__(self, inner: Cutter, source: str, target: str, **options: Any) -> None:
        try:
            import sacremoses
        except ImportError as error:
            raise ValueError("tokenizer='moses' needs a package: pip install sacremoses") from error
        self._inner, self._options = inner, options
        self._words = sacremoses.MosesTokenizer(source)
        self._text = sacremoses.MosesDetokenizer(target)

    def cut(self, text: str) -> list[str]:
        return self._inner.cut(self._words.tokenize(text, return_str=True, **self._options))

    def join(self, pieces: Sequence[str]) -> str:
        text: str = self._text.detokenize(self._inner.join(pieces).split())
        return text

    def marked(self, pieces: Iterable[str]) -> list[str]:
        return self._inner.marked(pieces)


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Reads the merges. Raises ValueError for a line that is none, and for the layout before
    2017."""
    merges = []
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split(" ")
        if number == 1 and line.startswith("#version"):
            continue
        if len(parts) not in (2, 3) or WORD_END in parts:
            raise ModelFileError(
                f"{path}, line {number}: {short(line)} is no merge of two symbols, the last of "
                f"a word ending in {WORD_END} (#version: 0.2)"
            )
        merges.append((parts[0], parts[1]))
    return merges
