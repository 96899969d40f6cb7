"""Tokens that were added to a vocabulary and lie beside it, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from decoding.text.token_texts import token_texts
from decoding.text.tokenizers import MultilingualTokenizer, load_tokenizer
from tests.support.vocabularies import (
    ENGLISH,
    GERMAN,
    TEXT,
    numbered,
    train_bpe,
    train_sentencepiece,
)
from tests.text.batches import check_batches, check_texts
from tests.text.trained_tokenizers import trained

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

LINES = [*TEXT, "so <|x|>ja<|y|>nein", "<|y|>", "<|x|><|x|>ja"]
FAMILIES = ["bart", "gpt2", "llama", "mbart", "roberta", "t5", "xlm-roberta"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("tokenizer.model", {"bos_id": 1, "model_type": "bpe", "byte_fallback": True}),
    "mbart": ("sentencepiece.bpe.model", {"bos_id": 1, "eos_id": 2}),
    "t5": ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2}),
    "xlm-roberta": ("sentencepiece.bpe.model", {"bos_id": 1, "eos_id": 2}),
}


def write_vocabulary(family: str, folder: Path) -> dict[str, Any]:
    """The plain files of a family's vocabulary, and its settings."""
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    if family in MODELS:
        name, options = MODELS[family]
        train_sentencepiece(TEXT, folder / name, vocab_size=400, **options)
        flags = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": True}
        return flags if family == "llama" else {}
    train_bpe(folder)
    if family != "gpt2":
        vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        vocab |= {token: len(vocab) + i for i, token in enumerate(special)}
        (folder / "vocab.json").write_text(json.dumps(vocab))
    return {}


def check(ours: Any, theirs: Any) -> None:
    rows = [theirs(line)["input_ids"] for line in LINES]
    for line, ids in zip(LINES, rows, strict=True):
        assert ours.encode(line) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip).strip()
            if skip:  # of extra special tokens transformers' mBART forgets its languages
                expected = expected.removesuffix("en_XX")
            assert ours.decode(ids, skip_special_tokens=skip).strip() == expected
    if not isinstance(ours, MultilingualTokenizer):
        check_batches(ours, LINES)
    check_texts(ours, rows)


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_vocabularies(family: str, where: str, tmp_path: Path) -> None:
    settings = write_vocabulary(family, tmp_path)
    first = len(load_tokenizer(tmp_path, {"model_type": family}))
    ids = {"<|y|>": first + 1, "<|x|>": first}
    if where == "added_tokens.json":
        (tmp_path / where).write_text(json.dumps(ids))
        settings["extra_special_tokens"] = ["<|y|>"]
    else:
        flags = {name: False for name in ("lstrip", "rstrip", "single_word", "normalized")}
        settings["added_tokens_decoder"] = {
            str(number): {"content": text, "special": text == "<|y|>", **flags}
            for text, number in ids.items()
        }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = load_tokenizer(tmp_path, {"model_type": family})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    check(ours, theirs)
    assert ours.convert_tokens_to_ids(["<|x|>", "<|y|>"]) == [first, first + 1]
    assert len(ours) == first + 2 == len(token_texts(ours))
    assert ours.decode([first, first + 1], skip_special_tokens=True) == "<|x|>"


@pytest.mark.parametrize("family", ["gpt2", "mbart", "qwen2"])
def test_beside_a_tokenizer_json(family: str, tmp_path: Path) -> None:
    trained(family, tmp_path, TEXT)
    path = tmp_path / "tokenizer_config.json"
    token = {"content": "<|x|>", "special": True, "rstrip": True, "normalized": False}
    added = {"added_tokens_decoder": {"900": token}, "extra_special_tokens": ["<|y|>"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | added))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    ours = load_tokenizer(tmp_path, {"model_type": family})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    check(ours, theirs)
    for name in ("<|x|>", "<|y|>"):
        assert ours.convert_tokens_to_ids(name) == theirs.convert_tokens_to_ids(name)


def test_special_tokens_of_marian(tmp_path: Path) -> None:
    pieces = train_sentencepiece(GERMAN, tmp_path / "source.spm")
    pieces += train_sentencepiece(ENGLISH, tmp_path / "target.spm")
    (tmp_path / "vocab.json").write_text(numbered([*pieces, "<|x|>", "<|y|>"]))
    settings = {"additional_special_tokens": [">>fra<<", "<|x|>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = load_tokenizer(tmp_path, {"model_type": "marian"})
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    for line in [*GERMAN, ">>fra<< so", "so <|x|> ja <|y|>", "so >>fra<< ja>>deu<<"]:
        ids = theirs(line)["input_ids"]
        assert ours.encode(line) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, use_source_tokenizer=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
        check_batches(ours, [line])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([7], "added_tokens_decoder must be a table"),
        ({"x": "so"}, "added_tokens_decoder must have ids as its keys, got 'x'"),
        ({"7": {}}, "added_tokens_decoder must be a token"),
        ({"7": {"content": "so", "lstrip": 7}}, "lstrip must be true or false"),
    ],
)
def test_damaged_tables(table: Any, message: str, tmp_path: Path) -> None:
    write_vocabulary("gpt2", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table}))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path, {"model_type": "gpt2"})
