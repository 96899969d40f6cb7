"""What a directory may hold and transformers does not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.published.directories import assert_same_tokens, write
from tests.support.families import FAMILIES


@pytest.mark.parametrize(
    "option", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}]
)
def test_gptj_has_no_options_of_gpt2s_attention(option: dict[str, Any], tmp_path: Path) -> None:
    assert_same_tokens(write(tmp_path, FAMILIES["gptj"].model(), **option))
