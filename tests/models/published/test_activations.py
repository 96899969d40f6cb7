"""The names of activations, and the keys that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.published.directories import assert_same_tokens, write
from tests.support.families import FAMILIES


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t5", {"feed_forward_proj": "relu", "dense_act_fn": "gelu_new"}),
        ("t5-1.1", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"}),
        ("mt5", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"}),
        ("umt5", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"}),
        ("t5", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu", "is_gated_act": False}),
        ("t5", {"feed_forward_proj": "gelu"}),
        ("t5-1.1", {"feed_forward_proj": "gated-swish"}),
        ("t5-1.1", {"feed_forward_proj": "gated-gelu"}),
    ],
)
def test_feed_forward_of_t5(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    silent = {"dense_act_fn": None, "is_gated_act": None}
    assert_same_tokens(write(tmp_path, FAMILIES[name].model(), **silent | options))
