"""Text to token ids and back, as a model directory's own Hugging Face tokenizer does it.

    tokenizer = load_tokenizer(directory, config)
    tokenizer.encode("Das ist ein Haus.")     ids with the special tokens of a source text
    tokenizer.decode(ids)                     text without special tokens

The libraries that made the vocabularies do the work (sentencepiece, tokenizers); what is added here
is what lies between them and the ids of the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import tokenizers
from sentencepiece import SentencePieceProcessor

WORD_START = "\u2581"  # sentencepiece writes it for the space before a word
LANGUAGE_CODE = re.compile(r">>.*?<<", re.DOTALL)
# What transformers removes where a tokenizer's settings ask for `clean_up_tokenization_spaces`.
SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
# What a directory may hold for its text; the families read some of it, transformers the rest.
FILES = (
    "source.spm",
    "target.spm",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


class Tokenizer(Protocol):
    """The text side of a model."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with the special tokens that a source or prompt has."""
        ...

    def encode_target(self, text: str) -> list[int]:
        """The ids of what the model should generate to write `text`, EOS included if it says so."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of generated ids."""
        ...


def load_tokenizer(directory: Path, config: dict[str, Any]) -> Tokenizer:
    """The tokenizer whose files lie in a model's `directory`; `config` is its config.json.

    Raises FileNotFoundError, naming the file, where one is missing, and ValueError for a
    `model_type` whose text is not supported or for files that contradict each other.
    """
    family = config.get("model_type")
    if family not in LOADERS:
        known = ", ".join(sorted(LOADERS))
        raise ValueError(f"no tokenizer for model_type {family!r} (there are: {known})")
    settings = directory / "tokenizer_config.json"
    return LOADERS[family](directory, _read_json(settings) if settings.is_file() else {})


def split_language_code(text: str) -> tuple[str, str]:
    """Separates the `>>xx<<` with which a text tells a multilingual model its target language."""
    code = LANGUAGE_CODE.match(text)
    return (code.group(), text[code.end() :]) if code else ("", text)


class MarianTokenizer:
    """Two SentencePiece models that cut text, and vocabularies that number the pieces.

    Equal to transformers' MarianTokenizer. That class also prepares a Moses punctuation normaliser
    where the package sacremoses is installed, but its encoding never calls it; so there is none
    here, and results do not depend on which packages are installed. Marian's models are trained
    on text that SentencePiece itself normalises.
    """

    def __init__(
        self,
        source: SentencePieceProcessor,
        target: SentencePieceProcessor,
        source_vocab: dict[str, int],
        target_vocab: dict[str, int],
        settings: dict[str, Any],
    ) -> None:
        self._source, self._target = source, target
        self._ids, self._target_ids = source_vocab, target_vocab
        self.tokens = {number: token for token, number in target_vocab.items()}
        self._unk = _token(settings, "unk_token", "<unk>")
        self._eos = _token(settings, "eos_token", "</s>")
        self._special = {self._unk, self._eos, _token(settings, "pad_token", "<pad>")}
        for token in (self._unk, self._eos):
            if token not in source_vocab or token not in target_vocab:
                raise ValueError(f"the vocabulary has no {token!r}, which text needs")
        for token in settings.get("added_tokens_decoder", {}).values():
            if token["content"] not in source_vocab:
                raise ValueError(f"added token {token['content']!r} is not in the vocabulary")
        longest_first = sorted(self._special & set(source_vocab), key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")").split
        self._clean_up = settings.get("clean_up_tokenization_spaces", False)

    def encode(self, text: str) -> list[int]:
        """Ids in the source vocabulary, ended by EOS.

        A special token written in the text is that token, and a language code at the start of
        what stands between special tokens is one entry of the vocabulary.
        """
        return self._numbered(self._cut(text, self._source), self._ids)

    def encode_target(self, text: str) -> list[int]:
        """The same as a translation: ids in the target vocabulary."""
        return self._numbered(self._cut(text, self._target), self._target_ids)

    def source_pieces(self, text: str) -> list[str | None]:
        """What each id of encode() stands for; None for language codes and special tokens."""
        tokens = [*self._cut(text, self._source), self._eos]
        return [None if self._is_mark(token) else token for token in tokens]

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        """What generated ids stand for; None for language codes and special tokens."""
        tokens = [self.tokens.get(int(number), self._unk) for number in ids]
        return [None if self._is_mark(token) else token for token in tokens]

    def _is_mark(self, token: str) -> bool:
        return token in self._special or LANGUAGE_CODE.fullmatch(token) is not None

    def _cut(self, text: str, pieces: SentencePieceProcessor) -> list[str]:
        tokens: list[str] = []
        for part in self._split(text):
            if part in self._special:
                tokens.append(part)
            elif part:
                code, rest = split_language_code(part)
                tokens += [code] if code else []
                tokens += pieces.encode(rest, out_type=str)
        return tokens

    def _numbered(self, tokens: list[str], ids: dict[str, int]) -> list[int]:
        unknown = ids[self._unk]
        return [ids.get(token, unknown) for token in tokens] + [ids[self._eos]]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids of the target vocabulary; an id without an entry counts as unknown."""
        words, pieces = list[str](), list[str]()
        for number in ids:
            token = self.tokens.get(int(number), self._unk)
            if token not in self._special:
                pieces.append(token)
            elif not skip_special_tokens:  # it belongs to no word
                words.append(self._target.decode_pieces(pieces) + token + " ")
                pieces = []
        words.append(self._target.decode_pieces(pieces))
        text = "".join(words).replace(WORD_START, " ").strip()
        for spaced in SPACED if self._clean_up else ():
            text = text.replace(spaced, spaced.strip())
        return text


class ByteLevelTokenizer:
    """GPT-2's byte-level byte-pair encoding, run by the `tokenizers` library."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend

    def encode(self, text: str) -> list[int]:
        """Ids of the text; GPT-2 adds no special token unless its settings ask for BOS."""
        return self.backend.encode(text).ids

    def encode_target(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids; bytes that form no character become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)


def _load_marian(directory: Path, settings: dict[str, Any]) -> Tokenizer:
    needs = "a Marian directory holds source.spm, target.spm and vocab.json for its text"
    source = _sentencepiece(_required(directory / "source.spm", needs))
    target = _sentencepiece(_required(directory / "target.spm", needs))
    vocab = target_vocab = _read_json(_required(directory / "vocab.json", needs))
    if settings.get("separate_vocabs"):
        needs = "tokenizer_config.json asks for separate_vocabs"
        target_vocab = _read_json(_required(directory / "target_vocab.json", needs))
    return MarianTokenizer(source, target, vocab, target_vocab, settings)


def _load_gpt2(directory: Path, settings: dict[str, Any]) -> Tokenizer:
    if (directory / "tokenizer.json").is_file():
        backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        backend.no_truncation()  # a setting of the run that saved the file, not of the model
        backend.no_padding()
    else:
        needs = "a GPT-2 directory holds tokenizer.json, or vocab.json and merges.txt, for its text"
        vocab = _required(directory / "vocab.json", needs)
        merges = _required(directory / "merges.txt", needs)
        backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
        prefix = settings.get("add_prefix_space", False)
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = tokenizers.decoders.ByteLevel()
    end = "<|endoftext|>"
    bos = _token(settings, "bos_token", end)
    named = [_token(settings, f"{name}_token", end) for name in ("eos", "unk")]
    padding = [_token(settings, "pad_token", "")] if settings.get("pad_token") else []
    backend.add_special_tokens([bos, *named, *padding])
    if settings.get("add_bos_token"):
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return ByteLevelTokenizer(backend)


LOADERS: dict[str, Callable[[Path, dict[str, Any]], Tokenizer]] = {
    "marian": _load_marian,
    "gpt2": _load_gpt2,
}


def _required(path: Path, needs: str) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {needs}")
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error


def _sentencepiece(path: Path) -> SentencePieceProcessor:
    try:
        return SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is not a SentencePiece model") from error


def _token(settings: dict[str, Any], name: str, default: str) -> str:
    """A special token of tokenizer_config.json, written as its text or as a table of settings."""
    token = settings.get(name) or default
    return cast(str, token["content"] if isinstance(token, dict) else token)
