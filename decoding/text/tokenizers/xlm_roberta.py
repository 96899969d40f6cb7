"""XLM-R's tokenizer: SentencePiece with fairseq's ids, between BOS and EOS."""

from __future__ import annotations

from typing import Any

from decoding.models.files import Directory
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_sentencepiece
from decoding.text.tokenizers.multilingual import BEGINNING, EOS, MASK, UNK, numbers
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer


def load_xlm_roberta(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    whole = directory.find("tokenizer.json")
    if whole is not None:
        return BackendTokenizer(read_backend(whole))
    needs = "this model's text needs tokenizer.json or sentencepiece.bpe.model"
    model = read_sentencepiece(directory.required("sentencepiece.bpe.model", needs))
    ids = numbers(model, None, ())
    pieces = Pieces(model, ids, {*BEGINNING, MASK}, UNK)
    return PieceTokenizer(
        pieces, [ids[EOS]], begin=[ids[BEGINNING[0]]], between=[ids[EOS], ids[EOS]]
    )
