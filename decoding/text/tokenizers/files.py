"""Reads the files of a tokenizer; an error names the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken

from decoding.models.files import (
    LINES,
    VOCABULARY,
    Directory,
    ModelFileError,
    read_bytes,
    read_object,
    read_text,
    short,
)
from decoding.models.files.directory import is_there

# Settings of sentence-transformers, of which the first one counts: its first versions named them
# by the kind of model.
KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
SENTENCE_SETTINGS = tuple(f"sentence_{kind}_config.json" for kind in KINDS)
SENTENCE_PROMPTS = "config_sentence_transformers.json"
# Tokenizer files of a directory; the families read some of them, transformers the rest.
FILES = (
    "source.spm",
    "target.spm",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "vocab.json",
    "target_vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "bpecodes",
    "code",
    "modules.json",  # of sentence-transformers, and what it names
    "1_Pooling/config.json",
    *SENTENCE_SETTINGS,
    SENTENCE_PROMPTS,
)
# Options of other toolkits that name such a file.
NAMED = (
    "bpe_codes",
    "sentencepiece_model",
    "src_subword_model",
    "tgt_subword_model",
    "tokenizer_file",
)


TABLE = "added_tokens_decoder"  # of tokenizer_config.json


def files_of(directory: Directory, config: Mapping[str, Any]) -> dict[str, Path]:
    """The files that a model's text may need, as far as they are there, by their names in its
    directory; of those elsewhere, which only trust_paths allows, by their last names."""
    names = [*FILES, *(f"dict.{config.get(side)}.txt" for side in ("source_lang", "target_lang"))]
    paths = [directory.file(name) for name in names]
    paths += [path for _, path in chat_templates(directory)]
    named = [(option, config[option]) for option in NAMED if config.get(option)]
    named += [("vocabs", name) for name in vocabularies(directory, config)]
    paths += [directory.named(name, option) for option, name in named]
    return {directory.name_of(path): path for path in paths if is_there(path)}


def chat_templates(directory: Directory) -> list[tuple[str, Path]]:
    """The chat templates in a directory: their names and files."""
    folder = directory.file("additional_chat_templates")
    others = sorted(path.name for path in folder.glob("*.jinja"))
    names = {"default": "chat_template.jinja"}
    names |= {name.removesuffix(".jinja"): f"{folder.name}/{name}" for name in others}
    found = [(name, directory.find(file)) for name, file in names.items()]
    return [(name, path) for name, path in found if path is not None]


def vocabularies(directory: Directory, config: Mapping[str, Any]) -> list[Any]:
    names = config.get("vocabs") or []
    if not isinstance(names, list):
        raise ModelFileError(f"{directory.path}: vocabs must be a list, got {short(names)}")
    return names


def read_optional(directory: Directory, name: str) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    path = directory.find(name)
    return {} if path is None else read_object(path)


def read_vocab(path: Path) -> dict[str, int]:
    """Ids by token, of JSON. Raises ModelFileError for what is no id."""
    return checked_ids(path, read_object(path, VOCABULARY))


def checked_ids(path: Path, ids: Mapping[str, Any]) -> dict[str, int]:
    wrong = [token for token, number in ids.items() if not is_id(number)]
    if wrong:
        raise ModelFileError(
            f"{path} must number its tokens, from 0 on: {short(wrong[0])} has the number "
            f"{short(ids[wrong[0]])}"
        )
    return dict(ids)


def is_id(number: object) -> bool:
    return type(number) is int and 0 <= number < 2**31


def read_lines(path: Path) -> list[str]:
    """Lines that end with a newline; other Unicode separators are part of a vocabulary's tokens."""
    return read_text(path, LINES).removesuffix("\n").split("\n")


def read_sentencepiece(path: Path) -> SentencePieceProcessor:
    content = read_bytes(path)
    if not content:  # the library would take it for a model that is not loaded yet
        raise ModelFileError(f"{path} is empty, not a SentencePiece model")
    try:
        return SentencePieceProcessor(model_proto=content)
    except (RuntimeError, UnicodeDecodeError) as error:  # the latter of its own message
        raise ModelFileError(f"{path} is not a SentencePiece model") from error


def read_pieces(path: Path) -> tuple[SentencePieceProcessor, list[str]]:
    """A SentencePiece model, and its pieces by id."""
    model = read_sentencepiece(path)
    try:
        return model, [model.id_to_piece(number) for number in range(model.get_piece_size())]
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path} has a piece that is not UTF-8") from error


def choice(settings: Mapping[str, Any], name: str, default: bool) -> bool:
    """A setting of tokenizer_config.json that is true, false or, for its default, null."""
    value = default if settings.get(name) is None else settings[name]
    if not isinstance(value, bool):
        raise ModelFileError(f"tokenizer_config.json: {name} must be true or false: {short(value)}")
    return value


def token(settings: Mapping[str, Any], name: str, default: str) -> str:
    """A special token of tokenizer_config.json, written as its text or as a table of settings."""
    return text_of(settings.get(name) or default, name)


def text_of(written: object, name: str) -> str:
    """name: the option that has it, for messages."""
    text = written.get("content") if isinstance(written, dict) else written
    if not isinstance(text, str):
        raise ModelFileError(f"tokenizer_config.json: {name} must be a token, got {short(written)}")
    return text


def has_flags(directory: Directory, settings: Mapping[str, Any]) -> bool:
    """Whether the files say which added tokens are special; added_tokens.json does not."""
    return TABLE in settings or directory.find("tokenizer.json") is not None


def read_added(directory: Directory, settings: Mapping[str, Any]) -> list[AddedToken]:
    """The tokens that lie beside a vocabulary: those of tokenizer_config.json, or else of
    added_tokens.json, in the order of their ids. A tokenizer.json has all of the latter."""
    whole = directory.find("tokenizer.json") is not None
    if TABLE in settings:
        return read_table(settings[TABLE] or {}, whole)
    path = directory.find("added_tokens.json")
    if whole or path is None:
        return []
    ids = read_vocab(path)
    return [AddedToken(text, normalized=False) for text in sorted(ids, key=ids.__getitem__) if text]


def read_table(table: Any, whole: bool) -> list[AddedToken]:
    """whole: there is a tokenizer.json, whose normalizer these tokens were made for."""
    if not isinstance(table, dict):
        raise ModelFileError(f"{TABLE} must be a table, got {short(table)}")
    wrong = [number for number in table if not (number.isdecimal() and len(number) < 11)]
    if wrong:
        raise ModelFileError(f"{TABLE} must have ids as its keys, got {short(wrong[0])}")
    found = []
    for number in sorted(table, key=int):
        text, token = text_of(table[number], TABLE), table[number]
        flags = {} if isinstance(token, str) else token
        special = choice(flags, "special", False)
        found.append(
            AddedToken(
                text,
                single_word=choice(flags, "single_word", False),
                lstrip=choice(flags, "lstrip", False),
                rstrip=choice(flags, "rstrip", False),
                normalized=whole and choice(flags, "normalized", not special),
                special=special,
            )
        )
    return [token for token in found if token.content]
