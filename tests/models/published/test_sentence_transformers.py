"""Files of sentence-transformers that not every directory has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import decoding
from tests.support.families import encoder
from tests.support.sentences import write_letters, write_pooling
from tests.support.vocabularies import ENGLISH, GERMAN

PROMPTS = "config_sentence_transformers.json"


@pytest.fixture
def sentences(tmp_path: Path) -> tuple[Path, Any]:
    """A BERT of letters, and where it is."""
    tokens = write_letters(tmp_path, [*ENGLISH, *GERMAN, "query: "])
    theirs = encoder("bert", vocab_size=len(tokens), max_position_embeddings=80)
    theirs.save_pretrained(tmp_path)
    write_pooling(tmp_path, mode="mean_tokens", normalise=False, max_seq_length=80)
    return tmp_path, theirs


@torch.no_grad()
def means(theirs: Any, folder: Path, texts: list[str], most: int) -> Tensor:
    """Of the hidden states of transformers."""
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    options: Any = {"truncation": True, "max_length": most, "return_tensors": "pt"}
    rows = [theirs(**tokenizer(text, **options)).last_hidden_state for text in texts]
    return torch.cat([row.mean(1) for row in rows])


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "xlm-roberta"])
def test_settings_by_the_kind_of_model(kind: str, sentences: tuple[Path, Any]) -> None:
    folder, theirs = sentences
    (folder / "sentence_bert_config.json").unlink()
    settings = {"max_seq_length": 12, "do_lower_case": True}
    (folder / f"sentence_{kind}_config.json").write_text(json.dumps(settings))
    expected = means(theirs, folder, [text.lower() for text in ENGLISH], 12)
    ours = decoding.load(folder, "cpu", dtype="float32", threads=1)
    torch.testing.assert_close(ours.embed(ENGLISH, truncate=True), expected, rtol=1e-4, atol=1e-5)


def test_the_default_prompt(sentences: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = sentences
    settings = {"prompts": {"query": "query: ", "passage": "so"}, "default_prompt_name": "query"}
    (folder / PROMPTS).write_text(json.dumps(settings))
    expected = means(theirs, folder, [f"query: {text}" for text in ENGLISH], 80)
    ours = decoding.load(folder, "cpu", dtype="float32", threads=1)
    torch.testing.assert_close(ours.embed(ENGLISH), expected, rtol=1e-4, atol=1e-5)
    ours.save(tmp_path / "saved")
    again = decoding.load(tmp_path / "saved", "cpu", threads=1)
    assert again.embed(ENGLISH).equal(ours.embed(ENGLISH))
    expected = means(theirs, folder, ENGLISH, 80)
    for name in (None, "document"):  # which is there, though it is not listed
        (folder / PROMPTS).write_text(json.dumps(settings | {"default_prompt_name": name}))
        plain = decoding.load(folder, "cpu", dtype="float32", threads=1).embed(ENGLISH)
        torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)


def test_what_is_wrong_with_a_prompt(sentences: tuple[Path, Any]) -> None:
    folder, _ = sentences
    pooling = folder / "1_Pooling" / "config.json"
    ours = decoding.load(folder, "cpu", dtype="float32", threads=1)
    for prompts, message in (
        ({}, "default_prompt_name='title' is none of the prompts"),
        ({"title": 3}, "default_prompt_name='title' is none of the prompts"),
        (["title"], "prompts must be texts by name"),
    ):
        settings: dict[str, Any] = {"prompts": prompts, "default_prompt_name": "title"}
        (folder / PROMPTS).write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=f"{PROMPTS}: {message}"):
            ours.embed("so")
    settings = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (folder / PROMPTS).write_text(json.dumps(settings))
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    with pytest.raises(ValueError, match="include_prompt=false is not supported beside a default"):
        ours.embed("so")
