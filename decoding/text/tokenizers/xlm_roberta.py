"""XLM-R's tokenizer: SentencePiece with fairseq's ids, between BOS and EOS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_sentencepiece, required
from decoding.text.tokenizers.multilingual import BEGINNING, EOS, MASK, UNK, numbers
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer


def load_xlm_roberta(directory: Path, settings: dict[str, Any]) -> Tokenizer:
    if (directory / "tokenizer.json").is_file():
        return BackendTokenizer(read_backend(directory / "tokenizer.json"))
    needs = "this model's text needs tokenizer.json or sentencepiece.bpe.model"
    model = read_sentencepiece(required(directory / "sentencepiece.bpe.model", needs))
    ids = numbers(model, None, ())
    pieces = Pieces(model, ids, {*BEGINNING, MASK}, UNK)
    return PieceTokenizer(
        pieces, [ids[EOS]], begin=[ids[BEGINNING[0]]], between=[ids[EOS], ids[EOS]]
    )
