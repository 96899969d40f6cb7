"""The text of decoder-only families: what transformers saves for them, run by us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from decoding.text.token_texts import token_texts
from decoding.text.tokenizers import load_tokenizer
from decoding.text.tokenizers.llama import BYTES, SPECIAL
from tests.support.vocabularies import ENGLISH, GERMAN, train_bpe
from tests.text.batches import check_batches

LINES = [
    *GERMAN,
    *ENGLISH,
    "",
    " two  spaces ",
    "привет, мир! 👋🏽\n\n\tso",
    "12345 a1",
    "It's  we'LL",
    "Ende</s><|endoftext|>so",
]
BYTE_LEVEL = {
    "gpt_neox": "GPTNeoXTokenizer",
    "gptj": "GPT2Tokenizer",
    "phi": "CodeGenTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}
PIECES = {"llama": "LlamaTokenizer", "gemma": "GemmaTokenizer", "gemma2": "GemmaTokenizer"}


def byte_level(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary and its merges."""
    train_bpe(folder)
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" ") for line in lines if not line.startswith("#version")]
    return vocab, [(first, second) for first, second in pairs]


def pieces(family: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The same of pieces of text, with bytes for letters that are none."""
    special = SPECIAL if family == "llama" else ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    merges = [("▁", "d"), ("e", "r"), ("e", "i"), ("▁", "t"), ("▁t", "h"), ("i", "n"), ("▁", "▁")]
    letters = sorted({letter for line in GERMAN + ENGLISH for letter in line if letter != " "})
    tokens = [*special, *BYTES, *letters, "▁", *map("".join, merges)]
    return {token: number for number, token in enumerate(tokens)}, merges


@pytest.mark.parametrize("family", BYTE_LEVEL | PIECES)
def test_a_saved_tokenizer(family: str, tmp_path: Path) -> None:
    vocab, merges = byte_level(tmp_path) if family in BYTE_LEVEL else pieces(family)
    kind = getattr(transformers, (BYTE_LEVEL | PIECES)[family])
    theirs: Any = kind(vocab=vocab, merges=merges)
    theirs.save_pretrained(tmp_path / "saved")
    ours = load_tokenizer(tmp_path / "saved", {"model_type": family})
    for line in LINES:
        ids = theirs(line)["input_ids"]
        assert ours.encode(line) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
        if "<" not in line:
            assert ours.decode(ids, skip_special_tokens=True).lstrip() == line.lstrip()
    check_batches(ours, LINES)
    assert len(token_texts(ours)) == len(theirs)


def test_missing_files(tmp_path: Path) -> None:
    for family, needs in [
        ("qwen2", "needs tokenizer.json$"),
        ("mistral", "needs tokenizer.json or tokenizer.model"),
    ]:
        with pytest.raises(FileNotFoundError, match=needs):
            load_tokenizer(tmp_path, {"model_type": family})
