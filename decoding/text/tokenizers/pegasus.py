"""Pegasus' tokenizer: SentencePiece, whose pieces follow the tokens of pre-training."""

from __future__ import annotations

from typing import Any

from decoding.models.files import Directory, ModelFileError, short
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_pieces
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
PIECES = 105  # what comes before the third piece, the unknown one


def load_pegasus(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    whole = directory.find("tokenizer.json")
    if whole is not None:
        return BackendTokenizer(read_backend(whole))
    needs = "a Pegasus directory holds tokenizer.json or spiece.model for its text"
    model, pieces = read_pieces(directory.required("spiece.model", needs))
    if settings.get("offset", PIECES - 2) != PIECES - 2:
        offset = short(settings["offset"])
        raise ModelFileError(f"tokenizer_config.json: offset={offset} is not supported")
    masks = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, PIECES - 2))]
    tokens = [PAD, EOS, *masks, *pieces[2:]]
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) < len(tokens) or not pieces[2:]:
        raise ModelFileError(f"{directory.path}: spiece.model has pieces of Pegasus' own, or none")
    return PieceTokenizer(Pieces(model, ids, {PAD, EOS, *masks, UNK}, UNK), [ids[EOS]])
