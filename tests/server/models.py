"""Models of all kinds for a server's tests, small or random."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

import decoding
from tests.support.demo import DEMO
from tests.support.sentences import write_letters, write_pooling
from tests.support.vocabularies import ENGLISH, GERMAN
from tests.text.trained_tokenizers import text_generation_directory

ROOT = Path(decoding.__file__).parent.parent
STORIES = ROOT / "tests/data/stories260K"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ 'assistant:' }}"


def engine(path: Path, device: str = "cpu") -> decoding.Engine:
    model = decoding.load(path, device=device, dtype="float32", threads=1)
    return decoding.Engine(model, max_requests=16)


def bytes_engine(folder: Path) -> decoding.Engine:
    """Of a random GPT-2, whose answers are full of halves of characters, with a chat template."""
    found = engine(text_generation_directory("gpt2", folder))
    assert isinstance(found.model, decoding.Model)
    found.model.tokenizer.chat_template = TEMPLATE
    return found


def sentence_model(folder: Path) -> decoding.Model:
    """A random encoder of sentence-transformers."""
    tokens = write_letters(folder, ENGLISH + GERMAN)
    write_pooling(folder, mode="mean", normalise=True)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return decoding.load(folder, device="cpu", threads=1)


def all_models(folder: Path) -> dict[str, decoding.Engine | decoding.Model]:
    """folder: where random ones are written."""
    for name in ("bytes", "sentences"):
        (folder / name).mkdir()
    return {
        "stories": engine(STORIES),
        "bytes": bytes_engine(folder / "bytes"),
        "demo": engine(DEMO),
        "sentences": sentence_model(folder / "sentences"),
    }
