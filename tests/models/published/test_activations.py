"""The names of activations, and the keys that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.activations import ACT2FN

from decoding.models.layouts.options import ACTIVATIONS
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


@pytest.mark.parametrize("name", ["gelu_python", "gelu_python_tanh", "gelu_accurate", "gelu_fast"])
def test_other_names_of_gelu(name: str, tmp_path: Path) -> None:
    x = torch.linspace(-8, 8, 2001)
    usual = ACT2FN["gelu" if ACTIVATIONS[name] == "gelu" else "gelu_new"](x)
    torch.testing.assert_close(ACT2FN[name](x), usual, rtol=1e-5, atol=1e-6)
    assert_same_tokens(write(tmp_path, FAMILIES["gptj"].model(), activation_function=name))
