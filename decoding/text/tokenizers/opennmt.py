"""Tokenizers of OpenNMT-py's models: the checkpoint lists the pieces, its transforms split text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decoding.models.files import Directory, ModelFileError, short
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.cutters import BytePairs, Cutter, SentencePieces, Words
from decoding.text.tokenizers.files import read_sentencepiece
from decoding.text.tokenizers.numbered import NumberedTokenizer

MARKS = frozenset({"<blank>", "<s>", "</s>"})

# Transforms that cut no text: they are of training alone.
TRAINING = {"filtertoolong", "filterfeats", "tokendrop", "tokenmask", "switchout"}


def load_opennmt(directory: Directory, config: dict[str, Any]) -> Tokenizer:
    """Raises ValueError that names an unsupported transform."""
    source, target = (
        cutter_and_ids(directory, config, side, tokens_of(config, side)) for side in ("src", "tgt")
    )
    return NumberedTokenizer(source, target, marks=MARKS, source_end=False)


def cutter_and_ids(
    directory: Directory, config: dict[str, Any], side: str, tokens: Iterable[str]
) -> tuple[Cutter, dict[str, int]]:
    ids = {token: number for number, token in enumerate(tokens)}
    transforms = transforms_of(config) - TRAINING
    if not transforms:
        return Words(), ids
    if len(transforms) > 1 or not transforms <= {"sentencepiece", "bpe"}:
        raise ModelFileError(
            f"transforms={short(sorted(transforms))} is not supported, only sentencepiece or bpe"
        )
    option = "src_subword_model" if config.get("share_vocab") else f"{side}_subword_model"
    name = config.get(option)
    if not name:
        raise ModelFileError(f"the checkpoint's options name no {option}, which text needs")
    needs = f"the checkpoint's text is cut with it ({option})"
    path = directory.required_named(name, option, needs)
    if transforms == {"bpe"}:
        return BytePairs(path, ids), ids
    return SentencePieces(read_sentencepiece(path)), ids


def tokens_of(config: dict[str, Any], side: str) -> list[str]:
    """What the importer has put into the configuration, which may have been saved since."""
    found = config.get("vocabularies")
    tokens = found.get(side) if isinstance(found, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ModelFileError(f"vocabularies must list the tokens of {side}, got {short(tokens)}")
    return tokens


def transforms_of(config: dict[str, Any]) -> set[str]:
    """The transforms of the whole training, and of each corpus."""
    corpora = config.get("data")
    groups = [config, *(corpora.values() if isinstance(corpora, dict) else ())]
    found = [group.get("transforms") or [] for group in groups if isinstance(group, dict)]
    if not all(isinstance(names, (list, tuple)) for names in found):
        raise ModelFileError(f"transforms must be lists of names, got {short(found)}")
    return {str(name) for names in found for name in names}
