"""Tokenizers of fairseq's models: dict.*.txt lists the pieces, options name the cutter of text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decoding.models.files import Directory, ModelFileError, short
from decoding.models.files.directory import is_there
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.cutters import BytePairs, Cutter, Moses, SentencePieces, Words
from decoding.text.tokenizers.files import read_lines, read_sentencepiece
from decoding.text.tokenizers.numbered import NumberedTokenizer

BEGINNING = ("<s>", "<pad>", "</s>", "<unk>")
OVERWRITE = " #fairseq:overwrite"  # ends the line of a token that is there already

# Options that name a file, and how it is called in published archives, whose options name none.
FILES = {
    "bpe_codes": ("bpecodes", "code"),
    "sentencepiece_model": ("sentencepiece.bpe.model",),
}
KINDS = {"fastbpe": "bpe_codes", "subword_nmt": "bpe_codes", "sentencepiece": "sentencepiece_model"}


def load_fairseq(directory: Directory, config: dict[str, Any]) -> Tokenizer:
    """Raises ValueError that names a missing or unsupported option."""
    vocabularies = []
    for option in ("source_lang", "target_lang"):
        language = config.get(option)
        if not language or not isinstance(language, str):
            raise ModelFileError(f"the checkpoint's options name no {option}, which text needs")
        needs = "fairseq's dictionaries must lie beside the checkpoint"
        vocabularies.append(read_dictionary(directory.required(f"dict.{language}.txt", needs)))
    source, target = vocabularies
    cutter = cutter_of(directory, config, {*source, *target})
    marks = frozenset(BEGINNING) - {"<unk>"}
    return NumberedTokenizer((cutter, source), (cutter, target), marks=marks, source_end=True)


def read_dictionary(path: Path) -> dict[str, int]:
    """Ids by token: the special tokens that all have, then `token count` in each line."""
    ids = {token: number for number, token in enumerate(BEGINNING)}
    for number, line in enumerate(read_lines(path)):
        overwrites = line.endswith(OVERWRITE)
        token, _, count = line.removesuffix(OVERWRITE).rpartition(" ")
        if not count.isdecimal() or (token in ids and not overwrites):
            raise ModelFileError(
                f"{path}, line {number + 1}: {short(line)} is no new token and its count"
            )
        ids[token] = len(BEGINNING) + number
    return ids


def cutter_of(directory: Directory, config: dict[str, Any], pieces: Iterable[str]) -> Cutter:
    kind = config.get("bpe")
    option = KINDS.get(str(kind)) if kind else published(directory)
    if kind and option is None:
        raise ModelFileError(f"bpe={short(kind)} is not supported, only {', '.join(KINDS)}")
    cutter: Cutter = Words()
    if option is not None:
        names = [config[option]] if config.get(option) else FILES[option]
        there = [name for name in names if is_there(directory.named(name, option))]
        needs = f"the checkpoint's text is cut with it ({option})"
        path = directory.required_named((there or names)[0], option, needs)
        if option == "bpe_codes":
            cutter = BytePairs(path, pieces)
        else:
            cutter = SentencePieces(read_sentencepiece(path))
    words = config.get("tokenizer")
    if words == "moses":
        return Moses(
            cutter,
            config["source_lang"],
            config["target_lang"],
            aggressive_dash_splits=not config.get("moses_no_dash_splits", False),
            escape=not config.get("moses_no_escape", False),
        )
    if words not in (None, "space"):
        raise ModelFileError(f"tokenizer={short(words)} is not supported, only moses and space")
    return cutter


def published(directory: Directory) -> str | None:
    """The option whose file lies in the directory by the name that published archives give it."""
    for option, names in FILES.items():
        if any(directory.find(name) for name in names):
            return option
    return None
