"""XLM-R's tokenizer: SentencePiece with fairseq's ids, between BOS and EOS."""

from __future__ import annotations

from typing import Any

from decoding.models.files import Directory
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_pieces
from decoding.text.tokenizers.multilingual import BEGINNING, EOS, MASK, UNK, numbers
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer


def load_xlm_roberta(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    whole = directory.find("tokenizer.json")
    if whole is not None:
        return BackendTokenizer(read_backend(whole))
    needs = "this model's text needs tokenizer.json or sentencepiece.bpe.model"
    model, pieces = read_pieces(directory.required("sentencepiece.bpe.model", needs))
    ids = numbers(pieces, None, ())
    cutter = Pieces(model, ids, {*BEGINNING, MASK}, UNK)
    begin, end = ids[BEGINNING[0]], ids[EOS]
    return PieceTokenizer(cutter, [end], begin=[begin], between=[end, end])
