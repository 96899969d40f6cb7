"""Tokenizers of T5 and mT5: SentencePiece, followed by the sentinel tokens of pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_sentencepiece, required, token
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer

MARKS = 100  # where the settings do not say how many


def load_t5(directory: Path, settings: dict[str, Any]) -> Tokenizer:
    if (directory / "tokenizer.json").is_file():
        return BackendTokenizer(read_backend(directory / "tokenizer.json"))
    needs = "this model's text needs tokenizer.json or spiece.model"
    model = read_sentencepiece(required(directory / "spiece.model", needs))
    count = settings.get("extra_ids", MARKS)
    tokens = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    tokens += [f"<extra_id_{number}>" for number in reversed(range(count))]
    ids = {token: number for number, token in enumerate(tokens)}
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    special = {name: token(settings, name, default) for name, default in names.items()}
    for name, text in special.items():
        if text not in ids:
            raise ValueError(f"{directory}: spiece.model has no {text!r}, the {name}")
    marks = {*special.values(), *tokens[model.get_piece_size() :]}
    pieces = Pieces(model, ids, marks, special["unk_token"])
    end = [ids[special["eos_token"]]]
    return PieceTokenizer(pieces, end, between=end)
