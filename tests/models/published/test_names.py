"""Names of tensors in files of other classes than the one that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import decoding
from tests.models.published.directories import assert_same_states, assert_same_tokens, write
from tests.support.checkpoints import State
from tests.support.families import FAMILIES, encoder
from tests.support.random_models import reference


def without_base(state: State) -> State:
    return {name.removeprefix("model."): tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "name",
    ["bart", "bart-untied", "mbart", "m2m-100", "pegasus", "blenderbot", "blenderbot-small",
     "marian"],
)  # fmt: skip
def test_files_of_the_model_alone(name: str, tmp_path: Path) -> None:
    model = FAMILIES[name].model() if name in FAMILIES else reference(name)
    assert_same_tokens(write(tmp_path, model, without_base))


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("bert", "cls.predictions.bias"),
        ("bert", "linear.weight"),  # a Dense of sentence-transformers
        ("roberta", "lm_head.bias"),
        ("xlm-roberta", "classifier.out_proj.bias"),
        ("distilbert", "vocab_projector.bias"),
    ],
)
def test_what_is_left_of_a_head(name: str, left: str, tmp_path: Path) -> None:
    """In a file whose other names lack the prefix."""
    write(tmp_path, encoder(name), lambda state: {**state, left: torch.zeros(60)})
    assert_same_states(tmp_path)


@pytest.mark.parametrize(
    ("name", "left"),
    [("bert", "encoder.layer.2.output.dense.bias"), ("distilbert", "transformer.layer.2.x"),
     ("bert", "embeddings.x"), ("bert", "pooler.x")],
)  # fmt: skip
def test_what_is_left_of_an_encoder_is_refused(name: str, left: str, tmp_path: Path) -> None:
    write(tmp_path, encoder(name), lambda state: {**state, left: torch.zeros(60)})
    with pytest.raises(ValueError, match=f"unexpected tensors, which we would ignore: {left}"):
        decoding.load(tmp_path, "cpu")
