"""Tokenizers of T5 and mT5: SentencePiece, followed by the sentinel tokens of pre-training."""

from __future__ import annotations

from typing import Any

from decoding.models.files import Directory, ModelFileError, short
from decoding.models.layouts.options import integer
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_pieces, token
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer

MARKS = 100  # where the settings do not say how many
MOST_MARKS = 10_000


def load_t5(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    whole = directory.find("tokenizer.json")
    if whole is not None:
        return BackendTokenizer(read_backend(whole))
    needs = "this model's text needs tokenizer.json or spiece.model"
    model, pieces = read_pieces(directory.required("spiece.model", needs))
    count = integer({"extra_ids": MARKS, **settings}, "extra_ids", 0, MOST_MARKS)
    tokens = [*pieces, *(f"<extra_id_{number}>" for number in reversed(range(count)))]
    ids = {text: number for number, text in enumerate(tokens)}
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    special = {name: token(settings, name, default) for name, default in names.items()}
    for name, text in special.items():
        if text not in ids:
            raise ModelFileError(f"{directory.path}: spiece.model has no {short(text)}, the {name}")
    marks = {*special.values(), *tokens[len(pieces) :]}
    end = [ids[special["eos_token"]]]
    return PieceTokenizer(Pieces(model, ids, marks, special["unk_token"]), end, between=end)
