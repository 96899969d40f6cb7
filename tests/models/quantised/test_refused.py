"""Quantised checkpoints that cannot be read: what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import decoding
from decoding.models import load
from tests.models.quantised.checkpoints import LAYOUTS, tensors, theirs, write_quantised
from tests.support.checkpoints import write

WEIGHT = "model.layers.0.mlp.down_proj.weight"
SCALE = f"{WEIGHT}_scale"
Damage = Callable[[dict[str, Any]], Any]
DAMAGED: dict[str, tuple[str, Damage, str]] = {
    "no scale": (
        "float-channel",
        lambda state: state.pop(SCALE),
        f"lacks the tensor {SCALE}, the scale of {WEIGHT}",
    ),
    "two scales": (
        "fp8-blocks",
        lambda state: state.update({SCALE: torch.ones(1)}),
        f"{WEIGHT} has several scales: {SCALE}_inv, {SCALE}",
    ),
    "no weight": (
        "float-channel",
        lambda state: state.pop(WEIGHT),
        f"lacks the tensor {WEIGHT}",
    ),
    "scale of another shape": (
        "float-channel",
        lambda state: state.update({SCALE: state[SCALE][:5]}),
        rf"{SCALE} must have the shape \[32, 1\] for a weight \[32, 48\], got \[5, 1\]",
    ),
    "scale of the other axis": (
        "float-channel",
        lambda state: state.update({SCALE: state[SCALE].T.contiguous()}),
        r"must have the shape \[32, 1\] for a weight \[32, 48\], got \[1, 32\]",
    ),
    "blocks of another size": (
        "fp8-blocks",
        lambda state: state.update({f"{SCALE}_inv": torch.ones(2, 2)}),
        r"must have the shape \[2, 3\] for a weight \[32, 48\], got \[2, 2\]",
    ),
    "scale of whole numbers": (
        "float-channel",
        lambda state: state.update({SCALE: state[SCALE].int()}),
        f"{SCALE} must hold floating-point numbers, got int32",
    ),
    "weight of one axis": (
        "float-channel",
        lambda state: state.update({WEIGHT: state[WEIGHT].flatten()}),
        rf"{WEIGHT} must have 2 axes, got the shape \[1536\]",
    ),
    "weight of another shape": (
        "float-tensor",
        lambda state: state.update({WEIGHT: state[WEIGHT][:, :9].contiguous()}),
        rf"{WEIGHT} must have the shape \[32, 48\], got \[32, 9\]",
    ),
    "zero points of another shape": (
        "int-asymmetric",
        lambda state: state.update({f"{WEIGHT}_zero_point": torch.zeros(2, dtype=torch.int8)}),
        r"zero_point must have the shape \[32, 1\] of the scale, got \[2\]",
    ),
    "scale of a plain weight": (
        "float-channel",
        lambda state: state.update({WEIGHT: state[WEIGHT].float()}),
        f"unexpected tensors, which we would ignore: {SCALE}",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_damaged_is_named(damage: str, tmp_path: Path) -> None:
    layout, change, words = DAMAGED[damage]
    write_quantised(tmp_path, theirs("llama"), LAYOUTS[layout])
    state = load_file(tmp_path / "model.safetensors")
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"{tmp_path}.*{words}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("tensor", "byte"), [(WEIGHT, 0x7F), (WEIGHT, 0xFF), (f"{WEIGHT}_scale_inv", 0xFF)]
)
def test_what_is_not_finite_is_named(tensor: str, byte: int, tmp_path: Path) -> None:
    write_quantised(tmp_path, theirs("llama"), LAYOUTS["fp8-one-scale"])
    state = load_file(tmp_path / "model.safetensors")
    state[tensor].view(-1).view(torch.uint8)[-4:] = byte
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"{tensor} holds NaN or inf"):
        decoding.load(tmp_path, "cpu", "float32")


def test_what_becomes_infinite_is_named(tmp_path: Path) -> None:
    write_quantised(tmp_path, theirs("llama"), LAYOUTS["int-channel"])
    state = load_file(tmp_path / "model.safetensors")
    state[SCALE][3] = 3e38
    save_file(state, tmp_path / "model.safetensors")
    for dtype in ("float32", "int8"):
        with pytest.raises(ValueError, match=r"feed_forward.down.weight holds inf, and float32"):
            decoding.load(tmp_path, "cpu", dtype)


def changed(weights: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """quantization_config of compressed-tensors. weights: options of its group of weights."""
    config = LAYOUTS["float-channel"].config()
    config["config_groups"]["group_0"]["weights"] |= weights or {}
    return config | options


REFUSED: list[tuple[Any, str]] = [
    ({"quant_method": "gptq", "bits": 4}, r"quant_method='gptq' \(weights of 4 bits\) is not read"),
    ({"quant_method": "awq", "w_bit": 4}, r"quant_method='awq' \(weights of 4 bits\) is not read"),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        r"'bitsandbytes' \(weights of 4 bits\) is not",
    ),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, r"\(weights of 8 bits\) is not read"),
    ({"quant_method": "mxfp4"}, r"quant_method='mxfp4' \(weights of 4 bits\) is not read"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_method='modelopt'"),
    ({"bits": 8}, r"quant_method=None \(weights of 8 bits\) is not read"),
    (["fp8"], r"quantization_config must be a table, got \['fp8'\]"),
    (
        changed({"num_bits": 4}, format="pack-quantized"),
        r"format='pack-quantized' \(weights of 4 bits\) is not read",
    ),
    (
        changed({"num_bits": 4}, format="nvfp4-pack-quantized"),
        r"'nvfp4-pack-quantized' \(weights of 4 bits\)",
    ),
    (changed({"num_bits": 4}), r"'float-quantized' \(weights of 4 bits\) is not read"),
    (changed(sparsity_config={"format": "sparse-24-bitmask"}), "a sparse format='sparse-24"),
    (changed(transform_config={"config_groups": {"u": {}}}), "with transform_config"),
    (changed({"strategy": "token"}), "strategy='token' is not supported"),
    (changed({"strategy": "group", "group_size": -1}), "group_size must be numbers from 1"),
    (changed({"strategy": "block", "block_structure": "12x"}), "block_structure must be numbers"),
    (changed(config_groups={}), "config_groups have no weights"),
    (changed(config_groups=[]), "config_groups must be a table"),
    ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size must be numbers"),
    ({"quant_method": "fp8", "weight_block_size": [1 << 40, 1]}, "weight_block_size must be num"),
]


@pytest.mark.parametrize(("config", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_not_read_is_named(config: Any, words: str, tmp_path: Path) -> None:
    write_quantised(tmp_path, theirs("llama"), LAYOUTS["float-channel"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    with pytest.raises(ValueError, match=f"config.json: quantization_config:? .*{words}"):
        load(tmp_path)
    if "is not read" in words:
        with pytest.raises(ValueError, match='load the checkpoint .* with dtype="int8"'):
            load(tmp_path)


def test_groups_of_weights_have_layouts_of_their_own(tmp_path: Path) -> None:
    """A weight's is the one that its scale fits."""
    model, groups = theirs("llama"), {}
    state, plain = tensors(model, LAYOUTS["float-channel"])
    blocks, blocks_plain = tensors(model, LAYOUTS["float-block"])
    for name in blocks:
        if "mlp" in name:
            state[name], plain[name] = blocks[name], blocks_plain.get(name, blocks[name])
    for i, layout in enumerate(("float-channel", "float-block")):
        groups[f"group_{i}"] = LAYOUTS[layout].config()["config_groups"]["group_0"]
    config = LAYOUTS["float-channel"].config() | {"config_groups": groups}
    write(tmp_path, model, state, quantization_config=config)
    found = load(tmp_path).state
    for ours, stored in [("feed_forward.down", "mlp.down_proj"), ("self_attention.out",) * 2]:
        stored = stored.replace("self_attention.out", "self_attn.o_proj")
        expected = plain[f"model.layers.0.{stored}.weight"]
        assert torch.equal(found[f"decoder.layers.0.{ours}.weight"], expected)
    groups["group_2"] = json.loads(json.dumps(groups["group_1"]))
    groups["group_2"]["weights"]["block_structure"] = [12, 17]
    write(tmp_path, model, state, quantization_config=config)
    with pytest.raises(ValueError, match="which fits several config_groups"):
        load(tmp_path)
