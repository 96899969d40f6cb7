"""Directories that transformers wrote, changed to what published ones hold, and read by both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import decoding
from tests.support.checkpoints import State
from tests.support.families import TOKENS, ragged


def write(
    directory: Path, model: Any, change: Callable[[State], State] | None = None, **config: Any
) -> Path:
    """As save_pretrained does, but for options of config.json (None leaves one out), and for the
    tensors where `change` makes others of them."""
    model.save_pretrained(directory)
    path, weights = directory / "config.json", directory / "model.safetensors"
    written = json.loads(path.read_text()) | config
    path.write_text(json.dumps({name: v for name, v in written.items() if v is not None}))
    if change is not None:
        state = {name: tensor.contiguous() for name, tensor in change(load_file(weights)).items()}
        save_file(state, weights, metadata={"format": "pt"})
    return directory


def assert_same_tokens(directory: Path, **options: Any) -> None:
    """Of transformers, which chooses the class by itself, and of decoding."""
    config = AutoConfig.from_pretrained(directory)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    theirs = kind.from_pretrained(directory, dtype=torch.float32).eval()
    given = {**ragged(theirs), "max_new_tokens": TOKENS, **options}
    if config.pad_token_id is not None:
        given.setdefault("suppress_tokens", [config.pad_token_id])
    expected = theirs.generate(**given)
    ours = decoding.load(directory, "cpu", dtype="float32", threads=1)
    assert ours.generate(**given).tolist() == expected.tolist()


@torch.no_grad()
def assert_same_states(directory: Path) -> None:
    """Of an encoder, in both libraries."""
    ids = torch.randint(4, 60, (3, 9), generator=torch.Generator().manual_seed(1))
    expected = AutoModel.from_pretrained(directory, dtype=torch.float32)(ids).last_hidden_state
    found = decoding.load(directory, "cpu", dtype="float32", threads=1).encode(ids)
    torch.testing.assert_close(found.last_hidden_state, expected, rtol=1e-4, atol=1e-4)
