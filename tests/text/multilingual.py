"""Random models of many languages, in directories of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoding.text.tokenizers import MultilingualTokenizer, load_tokenizer
from tests.support.families import SEQ2SEQ, Family
from tests.support.vocabularies import ENGLISH, GERMAN, train_sentencepiece


def write_mbart(folder: Path, kind: str) -> Any:
    """kind: the tokenizer's class, MBartTokenizer or MBart50Tokenizer. Returns transformers'
    model."""
    path = folder / "sentencepiece.bpe.model"
    train_sentencepiece(GERMAN + ENGLISH, path, bos_id=1, eos_id=2)
    tokenizer = load_tokenizer(folder, {"model_type": "mbart", "tokenizer_class": kind})
    assert isinstance(tokenizer, MultilingualTokenizer)
    config = SEQ2SEQ | {
        "vocab_size": 2 + max(tokenizer.codes.values()),
        "max_position_embeddings": 128,  # lines are not cut
        "eos_token_id": 2,
    }
    family = Family("MBartForConditionalGeneration", config | {"tokenizer_class": kind})
    model = family.model(end=2)
    model.generation_config.decoder_start_token_id = 2
    model.save_pretrained(folder)
    return model
