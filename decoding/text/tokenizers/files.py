"""Reads the files of a tokenizer; an error names the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from sentencepiece import SentencePieceProcessor

from decoding.models.formats.foreign import beside

# Tokenizer files of a directory; the families read some of them, transformers the rest.
FILES = (
    "source.spm",
    "target.spm",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "vocab.json",
    "target_vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "bpecodes",
    "code",
    "modules.json",  # of sentence-transformers, and what it names
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)
# Options of other toolkits that name such a file.
NAMED = (
    "bpe_codes",
    "sentencepiece_model",
    "src_subword_model",
    "tgt_subword_model",
    "tokenizer_file",
)


def files_of(directory: Path, config: Mapping[str, Any]) -> list[Path]:
    """The files that a model's text may need, as far as they lie in its `directory`."""
    named = [config.get(option) for option in NAMED] + (config.get("vocabs") or [])
    named += [f"dict.{config.get(side)}.txt" for side in ("source_lang", "target_lang")]
    paths = [directory / name for name in FILES]
    paths += [path for _, path in chat_templates(directory)]
    paths += [beside(directory, name) for name in named if name]
    return [path for path in paths if path.is_file()]


def chat_templates(directory: Path) -> list[tuple[str, Path]]:
    """The chat templates in a directory: their names and files."""
    found = [("default", directory / "chat_template.jinja")]
    others = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    return [(name, path) for name, path in found if path.is_file()] + [
        (path.stem, path) for path in others
    ]


def required(path: Path, needs: str) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {needs}")
    return path


def read_json(path: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error


def read_lines(path: Path) -> list[str]:
    """Lines that end with a newline; other Unicode separators are part of a vocabulary's tokens."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def read_sentencepiece(path: Path) -> SentencePieceProcessor:
    try:
        return SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is not a SentencePiece model") from error


def token(settings: dict[str, Any], name: str, default: str) -> str:
    """A special token of tokenizer_config.json, written as its text or as a table of settings."""
    return text_of(settings.get(name) or default)


def text_of(written: str | dict[str, Any]) -> str:
    return cast(str, written["content"] if isinstance(written, dict) else written)
