"""Pegasus' tokenizer: SentencePiece, whose pieces follow the tokens of pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_sentencepiece, required
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
PIECES = 105  # what comes before the third piece, the unknown one


def load_pegasus(directory: Path, settings: dict[str, Any]) -> Tokenizer:
    if (directory / "tokenizer.json").is_file():
        return BackendTokenizer(read_backend(directory / "tokenizer.json"))
    needs = "a Pegasus directory holds tokenizer.json or spiece.model for its text"
    model = read_sentencepiece(required(directory / "spiece.model", needs))
    if settings.get("offset", PIECES - 2) != PIECES - 2:
        raise ValueError(f"tokenizer_config.json: offset={settings['offset']} is not supported")
    masks = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, PIECES - 2))]
    pieces = [model.id_to_piece(number) for number in range(2, model.get_piece_size())]
    tokens = [PAD, EOS, *masks, *pieces]
    assert tokens.index(pieces[0]) == PIECES
    ids = {token: number for number, token in enumerate(tokens)}
    return PieceTokenizer(Pieces(model, ids, {PAD, EOS, *masks, UNK}, UNK), [ids[EOS]])
