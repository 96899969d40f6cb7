"""Vocabularies and SentencePiece models whose parts contradict each other."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from decoding.models.files import ModelFileError
from decoding.text.tokenizers import load_tokenizer
from decoding.text.tokenizers.bpe import read_merges
from tests.models.bounded import bounded
from tests.models.test_file_limits import refused
from tests.support.demo import DEMO
from tests.support.vocabularies import train_sentencepiece


def vocabulary(family: str, name: str, content: bytes, folder: Path) -> None:
    """A directory of a family's tokenizer, in which one file is another."""
    for file in ("source.spm", "target.spm"):
        (folder / file).write_bytes((DEMO / file).read_bytes())
    (folder / "spiece.model").write_bytes((DEMO / "source.spm").read_bytes())
    (folder / "vocab.json").write_text('{"<|endoftext|>": 0, "a": 1}')
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\n")
    (folder / name).write_bytes(content)


IDS = [b'{"a": "1"}', b'{"a": 1.5}', b'{"a": null}', b'{"a": [1]}', b'{"a": -1}', b'{"a": true}']
IDS += [b'{"a": 4294967296}', b"[]", b"7", b"{", b"\xff", b""]


@pytest.mark.parametrize("content", IDS)
@pytest.mark.parametrize("family", ["gpt2", "marian", "blenderbot-small"])
def test_numbers_of_tokens(family: str, content: bytes, tmp_path: Path) -> None:
    vocabulary(family, "vocab.json", content, tmp_path)
    config = {"model_type": family}
    refused(tmp_path, "vocab.json", lambda path: load_tokenizer(path, config))


@pytest.mark.parametrize(
    ("family", "name", "content"),
    [
        ("gpt2", "merges.txt", b"a b c d\n"),
        ("gpt2", "merges.txt", b"\xff\n"),
        ("gpt2", "merges.txt", b"not there\n"),
        ("gpt2", "tokenizer.json", b"{}"),
        ("gpt2", "tokenizer.json", b"\x00"),
        ("bert", "vocab.txt", b"\xff"),
        ("bert", "vocab.txt", b""),
        ("bert", "tokenizer_config.json", b'{"do_lower_case": 7}'),
        ("bert", "tokenizer_config.json", b'{"unk_token": ["a"]}'),
        ("bert", "tokenizer_config.json", b"[]"),
        ("marian", "source.spm", b""),
        ("marian", "source.spm", b"\xff" * 100),
        ("marian", "tokenizer_config.json", b'{"added_tokens_decoder": [7]}'),
        ("marian", "tokenizer_config.json", b'{"added_tokens_decoder": {"1": {}}}'),
        ("t5", "tokenizer_config.json", b'{"extra_ids": 4294967296}'),
        ("t5", "tokenizer_config.json", b'{"extra_ids": "x"}'),
        ("t5", "spiece.model", b"\x00"),
        ("pegasus", "tokenizer_config.json", b'{"offset": [1]}'),
        ("m2m_100", "special_tokens_map.json", b'{"additional_special_tokens": 7}'),
    ],
)
def test_damaged_vocabularies(family: str, name: str, content: bytes, tmp_path: Path) -> None:
    vocabulary(family, name, content, tmp_path)
    config = {"model_type": family}
    if family == "m2m_100":
        (tmp_path / "sentencepiece.bpe.model").write_bytes((DEMO / "source.spm").read_bytes())
        config["tokenizer_class"] = "NllbTokenizer"
    refused(tmp_path, "", lambda path: load_tokenizer(path, config))


def test_dictionaries_of_fairseq(tmp_path: Path) -> None:
    config = {"model_type": "fairseq", "source_lang": "de", "target_lang": "en"}
    for content in (b"\xff 1\n", b"a\n", b"a b\n", b"<s> 1\n"):
        (tmp_path / "dict.de.txt").write_bytes(content)
        (tmp_path / "dict.en.txt").write_bytes(b"a 1\n")
        refused(tmp_path, "dict.de.txt", lambda path: load_tokenizer(path, config))


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<ifi", 4, 0.0, -1),
        struct.pack("<ifi", 4, 0.0, 2**31 - 1),
        struct.pack("<ifi", 4, 0.0, 2) + b"\xff\xff",
        struct.pack("<ifi", 4, 0.0, 100_000) + b"ab" * 50_000,
        bytes(64 << 20),  # millions of empty pieces
        b"1",
    ],
)
def test_vocabularies_of_llama2c(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tok1.bin").write_bytes(content)
    config = {"model_type": "llama2c", "vocab_size": 1}
    refused(tmp_path, "tok1.bin", lambda path: load_tokenizer(path, config))
    for size in ("../../x", 2**40, None):
        config = {"model_type": "llama2c", "vocab_size": size}
        refused(tmp_path, "vocab_size", lambda path, c=config: load_tokenizer(path, c))  # type: ignore[misc]


def test_sentencepiece_models_with_other_pieces(tmp_path: Path) -> None:
    """What a family's importer expects of a model's pieces need not be so."""
    train_sentencepiece(["ein haus", "das auto"], tmp_path / "spiece.model")
    for family in ("t5", "pegasus"):
        try:
            with bounded():
                load_tokenizer(tmp_path, {"model_type": family})
        except ModelFileError as error:
            assert str(tmp_path) in str(error)


def test_sentencepiece_models_whose_pieces_are_no_text(tmp_path: Path) -> None:
    content = (DEMO / "source.spm").read_bytes()
    broken = content.replace("▁die".encode(), b"\xe2\x28die", 1)
    assert broken != content
    (tmp_path / "spiece.model").write_bytes(broken)
    for family in ("t5", "pegasus"):
        config = {"model_type": family}
        refused(tmp_path, "spiece.model", lambda path, c=config: load_tokenizer(path, c))  # type: ignore[misc]


def test_a_separator_of_unicode_is_a_symbol_of_merges(tmp_path: Path) -> None:
    path = tmp_path / "merges.txt"
    path.write_bytes("#version: 0.2\r\n\u2028 a\r\nb \x85\r\n".encode())
    assert read_merges(path) == [("\u2028", "a"), ("b", "\x85")]
