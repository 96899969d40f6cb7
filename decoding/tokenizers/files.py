"""Reading the files of a tokenizer; an error names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from sentencepiece import SentencePieceProcessor

# What a directory may hold for its text; the families read some of it, transformers the rest.
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
)


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
    """What newlines end; other separators of Unicode are part of a vocabulary's tokens."""
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
