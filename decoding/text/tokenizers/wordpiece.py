"""BERT's WordPiece: splits words into the longest pieces of a vocabulary, from left to right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import required, token

SPECIAL = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def load_wordpiece(directory: Path, settings: dict[str, Any]) -> Tokenizer:
    if (directory / "tokenizer.json").is_file():
        return BackendTokenizer(read_backend(directory / "tokenizer.json"))
    needs = "this model's text needs tokenizer.json or vocab.txt"
    path = required(directory / "vocab.txt", needs)
    special = {name: token(settings, name, default) for name, default in SPECIAL.items()}
    model = tokenizers.models.WordPiece.from_file(str(path), unk_token=special["unk_token"])
    backend = tokenizers.Tokenizer(model)
    for name, text in special.items():
        if backend.token_to_id(text) is None:
            raise ValueError(f"{path} has no {text!r}, the {name}")
    backend.add_special_tokens(list(special.values()))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    first, last = special["cls_token"], special["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        special_tokens=[(mark, backend.token_to_id(mark)) for mark in (first, last)],
    )
    return BackendTokenizer(backend)
