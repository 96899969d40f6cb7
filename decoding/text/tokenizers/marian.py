"""Marian's tokenizer: two SentencePiece models, and vocabularies with the ids of the pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from decoding.models.files import (
    VOCABULARY,
    Directory,
    ModelFileError,
    read_text,
    short,
)
from decoding.text.rows import Rows
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import (
    checked_ids,
    read_added,
    read_lines,
    read_pieces,
    read_sentencepiece,
    read_vocab,
    token,
    vocabularies,
)
from decoding.text.tokenizers.framed import FramedTokenizer
from decoding.text.tokenizers.pieces import Pieces

LANGUAGE_CODE = re.compile(r">>.*?<<", re.DOTALL)


def split_language_code(text: str) -> tuple[str, str]:
    """Separates the code `>>xx<<` with which a text names a multilingual model's target
    language."""
    code = LANGUAGE_CODE.match(text)
    return (code.group(), text[code.end() :]) if code else ("", text)


class MarianPieces(Pieces):
    """Pieces of text between special tokens; a language code at its start is one token, and a space
    follows each special token."""

    def is_plain(self, text: str) -> bool:
        return super().is_plain(text) and "\n>>" not in text

    def cut_plain(self, text: str) -> list[str]:
        code, rest = split_language_code(text)
        return ([code] if code else []) + super().cut_plain(rest)

    def behind(self, pieces: list[str]) -> str:
        return " " + self.joined(pieces)


class MarianTokenizer(FramedTokenizer):
    """Equal to transformers' MarianTokenizer.

    That class also prepares a Moses punctuation normaliser where the package sacremoses is
    installed, but its encoding never calls it; so there is none here, and results do not depend on
    which packages are installed. Marian's models are trained on text that SentencePiece itself
    normalises.
    """

    def __init__(
        self,
        source: SentencePieceProcessor,
        target: SentencePieceProcessor,
        source_vocab: dict[str, int],
        target_vocab: dict[str, int],
        settings: dict[str, Any],
    ) -> None:
        unk, self._eos = token(settings, "unk_token", "<unk>"), token(settings, "eos_token", "</s>")
        for vocab in (source_vocab, target_vocab):
            if self._eos not in vocab:
                raise ValueError(f"the vocabulary has no {short(self._eos)}, which text needs")
        special = {unk, self._eos, token(settings, "pad_token", "<pad>")}
        special &= source_vocab.keys() | target_vocab.keys()
        self._pair = settings.get("source_lang"), settings.get("target_lang")
        self._source: Pieces = MarianPieces(source, source_vocab, special, unk)
        self._target: Pieces = MarianPieces(target, target_vocab, special, unk)

    @property
    def tokens(self) -> dict[int, str]:
        """The target vocabulary's tokens, by their ids."""
        return self._target.tokens

    @property
    def pair(self) -> tuple[Any, Any]:
        """The languages that it translates from and to, as the model's files name them; None where
        they do not."""
        return self._pair

    @property
    def target_codes(self) -> list[str]:
        """What a text may begin with to name the target's language, `>>fra<<`; mostly nothing."""
        return [token for token in self._source.ids if LANGUAGE_CODE.fullmatch(token)]

    def get_vocab(self) -> Mapping[str, int]:
        return self._source.ids

    def cut(self, text: str) -> list[int]:
        """Ids in the source vocabulary. A special token written in the text is that token."""
        return self._source.numbered(self._source.cut(text))

    def cut_batch(self, texts: list[str]) -> Rows:
        return self._source.numbered_batch(texts)

    def add_tokens(self, marks: Mapping[str, bool]) -> None:
        """See `Pieces.with_tokens`; those that a vocabulary lacks are none of its tokens."""
        self._source, self._target = (
            side.with_tokens({text: mark for text, mark in marks.items() if text in side.ids})
            for side in (self._source, self._target)
        )

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        return [*first, *(second or []), self._source.ids[self._eos]]

    def for_target(self) -> Tokenizer:
        target = copy(self)
        target._source = self._target
        return target

    def encode_target(self, text: str) -> list[int]:
        """Ids of a translation, in the target vocabulary."""
        return self._target.numbered([*self._target.cut(text), self._eos])

    def encode_target_batch(self, texts: list[str]) -> Rows:
        return self._target.numbered_batch(texts).framed([], [self._target.ids[self._eos]])

    def source_pieces(self, text: str) -> list[str | None]:
        """The piece of each id of encode(); None for language codes and special tokens."""
        return self._words([*self._source.cut(text), self._eos])

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        """The pieces of generated ids; None for language codes and special tokens."""
        return self._words(self._target.named(ids))

    def _words(self, tokens: list[str]) -> list[str | None]:
        marks = self._source.special
        return [None if t in marks or LANGUAGE_CODE.fullmatch(t) else t for t in tokens]

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of ids of the target vocabulary; an id without an entry counts as unknown."""
        return self._target.text(ids, skip_special_tokens)

    def texts_of(self, rows: Rows, skip_special_tokens: bool) -> list[str]:
        return self._target.texts(rows, skip_special_tokens)

    def settled(self, ids: Sequence[int]) -> int:
        return self._target.settled(ids)


def load_marian_npz(directory: Directory, config: dict[str, Any]) -> Tokenizer:
    """Marian's own vocabularies: SentencePiece models, or lists of the pieces that models named
    source.spm and target.spm cut."""
    names = vocabularies(directory, config)
    if len(names) != 2:
        raise ModelFileError(f"the model's options must name two vocabs, got {short(names)}")
    needs = "the options name it (vocabs)"
    paths = [directory.required_named(name, "vocabs", needs) for name in names]
    (source, source_vocab), (target, target_vocab) = (
        read_side(directory, path, f"{side}.spm")
        for path, side in zip(paths, ("source", "target"), strict=True)
    )
    return MarianTokenizer(source, target, source_vocab, target_vocab, {})


def read_side(
    directory: Directory, vocab: Path, model: str
) -> tuple[SentencePieceProcessor, dict[str, int]]:
    """The cutter of one side's text, and the ids of the pieces."""
    if vocab.suffix == ".spm":
        cutter, pieces = read_pieces(vocab)
        return cutter, {piece: number for number, piece in enumerate(pieces)}
    needs = f"it cuts text into the pieces that {vocab.name} numbers"
    return read_sentencepiece(directory.required(model, needs)), read_vocabulary(vocab)


def read_vocabulary(path: Path) -> dict[str, int]:
    """Ids by token, of YAML, JSON, or a text with a token in each line."""
    if path.suffix not in (".yml", ".yaml", ".json"):
        return {token: number for number, token in enumerate(read_lines(path))}
    from decoding.models.files.yaml import parse_yaml  # few models have YAML

    # No scalar becomes more than a string at first: tokens look like numbers and dates.
    content = parse_yaml(read_text(path), str(path), VOCABULARY, plain=True)
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} is no vocabulary of tokens and their ids: {short(content)}")
    ids = {token: as_number(number) for token, number in content.items()}
    return checked_ids(path, ids)


def as_number(text: object) -> object:
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,10}", text) else text


def load_marian(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    needs = "a Marian directory holds source.spm, target.spm and vocab.json for its text"
    source = read_sentencepiece(directory.required("source.spm", needs))
    target = read_sentencepiece(directory.required("target.spm", needs))
    vocab = target_vocab = read_vocab(directory.required("vocab.json", needs))
    if settings.get("separate_vocabs"):
        needs = "tokenizer_config.json asks for separate_vocabs"
        target_vocab = read_vocab(directory.required("target_vocab.json", needs))
    for added in read_added(directory, settings):
        if added.content not in vocab:
            raise ValueError(f"added token {short(added.content)} is not in the vocabulary")
    return MarianTokenizer(source, target, vocab, target_vocab, settings)
