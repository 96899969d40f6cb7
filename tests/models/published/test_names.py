"""Names of tensors in files of other classes than the one that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.published.directories import assert_same_tokens, write
from tests.support.checkpoints import State
from tests.support.families import FAMILIES
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
