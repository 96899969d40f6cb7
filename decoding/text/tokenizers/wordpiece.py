"""BERT's WordPiece: splits words into the longest pieces of a vocabulary, from left to right."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from decoding.models.files import Directory, ModelFileError, short
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend, reading
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import choice, read_lines, token

SPECIAL = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def load_wordpiece(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    whole = directory.find("tokenizer.json")
    if whole is not None:
        return BackendTokenizer(read_backend(whole))
    needs = "this model's text needs tokenizer.json or vocab.txt"
    path = directory.required("vocab.txt", needs)
    special = {name: token(settings, name, default) for name, default in SPECIAL.items()}
    ids = {line.rstrip(): number for number, line in enumerate(read_lines(path))}
    with reading(path):
        model = tokenizers.models.WordPiece(ids, unk_token=special["unk_token"])
        backend = tokenizers.Tokenizer(model)
    for name, text in special.items():
        if backend.token_to_id(text) is None:
            raise ModelFileError(f"{path} has no {short(text)}, the {name}")
    backend.add_special_tokens(list(special.values()))
    strips = settings.get("strip_accents")
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=choice(settings, "tokenize_chinese_chars", True),
        strip_accents=None if strips is None else choice(settings, "strip_accents", False),
        lowercase=choice(settings, "do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    first, last = special["cls_token"], special["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, "$B:1", f"{last}:1"],
        special_tokens=[(mark, backend.token_to_id(mark)) for mark in (first, last)],
    )
    return BackendTokenizer(backend)
