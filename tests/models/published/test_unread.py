"""What a directory may hold and transformers does not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.published.directories import assert_same_tokens, write
from tests.support.checkpoints import State
from tests.support.families import FAMILIES


@pytest.mark.parametrize(
    "option", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}]
)
def test_gptj_has_no_options_of_gpt2s_attention(option: dict[str, Any], tmp_path: Path) -> None:
    assert_same_tokens(write(tmp_path, FAMILIES["gptj"].model(), **option))


@pytest.mark.parametrize("rows", [48, 50, 1026])
def test_m2m_100_computes_its_positions_and_has_no_bias(rows: int, tmp_path: Path) -> None:
    def with_tensors(state: State) -> State:
        generator = torch.Generator().manual_seed(0)
        for side in ("encoder", "decoder"):
            table = torch.randn(rows, 32, generator=generator)
            state[f"model.{side}.embed_positions.weight"] = table
        return {**state, "final_logits_bias": torch.randn(1, 60, generator=generator)}

    assert_same_tokens(write(tmp_path, FAMILIES["m2m-100"].model(), with_tensors))


@pytest.mark.parametrize(
    "table",
    [
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12, "finetuned": True},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12, "attn_factor": 2.0},
        {"type": "linear", "factor": 4.0, "original_max_position_embeddings": 12},
        {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 12},
        {"type": "default", "factor": 4.0},
    ],
)
def test_keys_of_rotary_positions(table: dict[str, Any], tmp_path: Path) -> None:
    old: Any = {"rope_parameters": None, "rope_theta": 100.0, "rope_scaling": table}
    assert_same_tokens(write(tmp_path, FAMILIES["llama"].model(), **old))
