"""Tokenizers of OpenNMT-py's models: the checkpoint lists the pieces, its transforms split text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decoding.models.formats.foreign import beside
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.cutters import BytePairs, Cutter, SentencePieces, Words
from decoding.text.tokenizers.files import read_sentencepiece, required
from decoding.text.tokenizers.numbered import NumberedTokenizer

MARKS = frozenset({"<blank>", "<s>", "</s>"})

# Transforms that cut no text: they are of training alone.
TRAINING = {"filtertoolong", "filterfeats", "tokendrop", "tokenmask", "switchout"}


def load_opennmt(directory: Path, config: dict[str, Any]) -> Tokenizer:
    """Raises ValueError that names an unsupported transform."""
    source, target = (
        cutter_and_ids(directory, config, side, config["vocabularies"][side])
        for side in ("src", "tgt")
    )
    return NumberedTokenizer(source, target, marks=MARKS, source_end=False)


def cutter_and_ids(
    directory: Path, config: dict[str, Any], side: str, tokens: Iterable[str]
) -> tuple[Cutter, dict[str, int]]:
    ids = {token: number for number, token in enumerate(tokens)}
    transforms = transforms_of(config) - TRAINING
    if not transforms:
        return Words(), ids
    if len(transforms) > 1 or not transforms <= {"sentencepiece", "bpe"}:
        raise ValueError(
            f"transforms={sorted(transforms)} is not supported, only sentencepiece or bpe"
        )
    option = "src_subword_model" if config.get("share_vocab") else f"{side}_subword_model"
    name = config.get(option)
    if not name:
        raise ValueError(f"the checkpoint's options name no {option}, which text needs")
    path = required(beside(directory, name), f"the checkpoint's text is cut with it ({option})")
    if transforms == {"bpe"}:
        return BytePairs(path, ids), ids
    return SentencePieces(read_sentencepiece(path)), ids


def transforms_of(config: dict[str, Any]) -> set[str]:
    """The transforms of the whole training, and of each corpus."""
    corpora = config.get("data")
    groups = [config, *(corpora.values() if isinstance(corpora, dict) else ())]
    return {name for group in groups for name in group.get("transforms") or ()}
