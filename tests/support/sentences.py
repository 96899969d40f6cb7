"""Files of sentence-transformers' directories."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.vocabularies import ENGLISH, GERMAN


def write_letters(folder: Path, lines: Iterable[str]) -> list[str]:
    """The files of a BERT tokenizer whose pieces are letters, and those pieces."""
    letters = sorted({letter for line in lines for letter in line} - {" "})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": False, "model_max_length": 30})
    )
    return tokens


def write_pooling(folder: Path, *, mode: str, normalise: bool, **settings: Any) -> None:
    """The files that sentence-transformers adds to a model's. mode: of its version 6, or the end of
    a flag's name in those before."""
    kinds = ["Transformer", "Pooling", "Normalize"][: 3 if normalise else 2]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = ("cls_token", "mean_tokens", "max_tokens")
    config: dict[str, Any] = {"pooling_mode": mode, "include_prompt": True}
    if mode in flags:
        config = {f"pooling_mode_{name}": name == mode for name in flags}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))


def write_bert(folder: Path) -> None:
    """A directory of sentence-transformers with a random BERT of width 32."""
    tokens = write_letters(folder, ENGLISH + GERMAN)
    write_pooling(folder, mode="mean", normalise=True)
    config = transformers.BertConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
