"""Tokenizers that the `tokenizers` library runs: tokenizer.json, or a byte-level BPE's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import required, token
from decoding.text.tokenizers.pieces import WORD_START


class BackendTokenizer:
    """A tokenizer of the library, special tokens included."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        added = backend.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}
        byte_level = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        self._space = "\u0120" if byte_level else WORD_START  # a token's way to write it

    def cut(self, text: str) -> list[int]:
        """The ids of a text alone."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text).ids

    def encode_target(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids; bytes that form no character become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def source_pieces(self, text: str) -> list[str | None]:
        return self.target_pieces(self.encode(text))

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        """The pieces of ids; None for special tokens."""
        return [None if i in self._special else self._piece(i) for i in ids]

    def _piece(self, number: int) -> str | None:
        piece = self.backend.id_to_token(number)
        return None if piece is None else piece.replace(self._space, WORD_START)


def load_whole(directory: Path, settings: dict[str, Any]) -> Tokenizer:
    """Loads the tokenizer of a family that always has a tokenizer.json."""
    needs = "this model's text needs tokenizer.json"
    return BackendTokenizer(read_backend(required(directory / "tokenizer.json", needs)))


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Reads a tokenizer.json."""
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no class of its own
        raise ValueError(f"{path} cannot be read as a tokenizer: {error}") from error
    backend.no_truncation()  # a setting of the run that saved the file, not of the model
    backend.no_padding()
    return backend


@dataclass(frozen=True)
class ByteLevel:
    """A family's byte-level BPE, where its directory's settings are silent.

    template: a text with its special tokens, by their names in the settings.
    """

    special: dict[str, str]  # names to tokens
    prefix_space: bool = False
    template: tuple[str, ...] = ("$A",)

    def load(self, directory: Path, settings: dict[str, Any]) -> Tokenizer:
        whole = directory / "tokenizer.json"
        backend = (
            read_backend(whole) if whole.is_file() else self._of_two_files(directory, settings)
        )
        special = {name: token(settings, name, default) for name, default in self.special.items()}
        if settings.get("pad_token"):
            special["pad_token"] = token(settings, "pad_token", "")
        there = {added.content for added in backend.get_added_tokens_decoder().values()}
        backend.add_special_tokens(
            [
                tokenizers.AddedToken(text, lstrip=name == "mask_token")
                for name, text in special.items()
                if text not in there
            ]
        )
        template = self.template
        if settings.get("add_bos_token"):
            template = ("bos_token", "$A")
        if not whole.is_file() or template != self.template:
            parts = [special.get(part, part) for part in template]
            marks = {part: backend.token_to_id(part) for part in parts if part != "$A"}
            backend.post_processor = tokenizers.processors.TemplateProcessing(
                single=parts, special_tokens=list(marks.items())
            )
        return BackendTokenizer(backend)

    def _of_two_files(self, directory: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
        needs = "this model's text needs tokenizer.json, or vocab.json and merges.txt"
        vocab = required(directory / "vocab.json", needs)
        merges = required(directory / "merges.txt", needs)
        backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
        prefix = settings.get("add_prefix_space", self.prefix_space)
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = tokenizers.decoders.ByteLevel()
        return backend


END = "<|endoftext|>"
FAIRSEQ = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
GPT2 = ByteLevel({"bos_token": END, "eos_token": END, "unk_token": END})
OPT = ByteLevel(
    {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"},
    template=("bos_token", "$A"),
)
BART = ByteLevel(FAIRSEQ, template=("bos_token", "$A", "eos_token"))
BLENDERBOT = ByteLevel(FAIRSEQ, prefix_space=True, template=("$A", "eos_token"))
