"""Checkpoints that are quantised to 8 bits: their weights, and what they generate."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import decoding
from decoding.models import load
from decoding.models.weights.fingerprint import fingerprint
from decoding.models.weights.lazy import Weights, part
from decoding.models.weights.shards import Shard
from tests.models.quantised.checkpoints import (
    LAYOUTS,
    assert_equal,
    loaded_plain,
    tensors,
    theirs,
    write_quantised,
)
from tests.support.checkpoints import write
from tests.support.families import FAMILIES, TOKENS, ragged

# Stacked in the file, tied, with each head's query, key and value together, multiplied on their
# way, with an encoder.
NAMES = ["llama", "llama-3", "phi3", "qwen2", "gpt-neox", "bloom", "t5", "bart", "m2m-100"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["llama-3", "phi3", "bart"])
def test_weights_are_numbers_times_scales(name: str, layout: str, tmp_path: Path) -> None:
    write_quantised(tmp_path, theirs(name), LAYOUTS[layout], dtype="bfloat16")
    loaded = load(tmp_path)
    assert loaded.stored == "bfloat16"
    assert_equal(loaded.state, loaded_plain(name, layout).state)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["llama", "phi3", "bart"])
def test_ranks_have_parts_of_the_whole(name: str, layout: str, tmp_path: Path) -> None:
    """Also where these begin and end inside of a block."""
    write_quantised(tmp_path, theirs(name), LAYOUTS[layout])
    loaded, plain = load(tmp_path), loaded_plain(name, layout)
    for rank in range(4):
        parts = [
            Shard(rank, 4).weights(each.spec, each.state)  # type: ignore[arg-type]
            for each in (loaded, plain)
        ]
        assert_equal(*parts)


def test_a_part_needs_its_own_numbers_alone(tmp_path: Path) -> None:
    write_quantised(tmp_path, theirs("llama"), LAYOUTS["fp8-blocks"])
    weights = load(tmp_path).state
    assert isinstance(weights, Weights)
    down = weights.lazy("decoder.layers.0.feed_forward.down.weight")
    for axis, some, scales in [(0, range(20, 30), (1, 3)), (1, range(18, 41), (2, 3))]:
        found = part(down, axis, some)
        assert [each.shape for each in found.inputs] == [found.shape, scales]
        assert found.shape[axis] == len(some)


@pytest.mark.parametrize("layout", ["fp8-blocks", "float-channel", "int-channel"])
@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_of_the_dequantised_model(name: str, layout: str, tmp_path: Path) -> None:
    plain = FAMILIES[name].model()
    plain.load_state_dict(write_quantised(tmp_path, theirs(name), LAYOUTS[layout]), strict=False)
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "num_beams": 3, "num_return_sequences": 2}
    options["suppress_tokens"] = [plain.config.pad_token_id]
    given = ragged(plain)
    ours = decoding.load(tmp_path, "cpu", "float32", threads=1)
    assert torch.equal(ours.generate(**given, **options), plain.generate(**given, **options))


@pytest.mark.parametrize("layout", ["fp8-blocks", "fp8-one-scale"])
def test_the_weights_of_transformers(layout: str, tmp_path: Path) -> None:
    """As it dequantises them itself, for which blocks must fill the weight."""
    given = replace(LAYOUTS[layout], block=(16, 16)) if layout == "fp8-blocks" else LAYOUTS[layout]
    write_quantised(tmp_path, theirs("llama"), given, dtype="float32")
    config = transformers.FineGrainedFP8Config(dequantize=True)
    config.weight_block_size = None if layout == "fp8-one-scale" else (16, 16)
    expected = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, quantization_config=config
    )
    assert not any("scale" in name for name in expected.state_dict())
    assert_equal(load(tmp_path).state, load(expected).state)


def test_shards_of_a_file(tmp_path: Path) -> None:
    """A scale may be in another file than its weight."""
    plain = write_quantised(tmp_path, theirs("llama"), LAYOUTS["fp8-blocks"])
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    shard_of = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(state))}
    for shard in set(shard_of.values()):
        part = {name: tensor for name, tensor in state.items() if shard_of[name] == shard}
        save_file(part, tmp_path / shard)
    index = json.dumps({"weight_map": shard_of})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    name = "model.layers.0.mlp.down_proj.weight"
    found = load(tmp_path).state["decoder.layers.0.feed_forward.down.weight"]
    assert torch.equal(found, plain[name])
    assert shard_of[name] != shard_of[f"{name}_scale_inv"]


def test_other_tensors_of_published_files(tmp_path: Path) -> None:
    """Scales of activations, of keys and values: weights are read alone. Powers of two as scales,
    in a byte. A file of torch."""
    plain = write_quantised(tmp_path, theirs("llama"), LAYOUTS["fp8-one-scale"])
    state = load_file(tmp_path / "model.safetensors")
    for name in [name for name in state if name.endswith("_scale_inv")]:
        stem = name.removesuffix("weight_scale_inv")
        power = torch.tensor(0.25).to(torch.float8_e8m0fnu)
        weight = state[f"{stem}weight"]
        plain[f"{stem}weight"] = weight.float() / 4
        state[name], state[f"{stem}activation_scale"] = power, torch.tensor(3.0)
        state[f"{stem}input_scale"] = torch.tensor([3.0])
    state["model.layers.0.self_attn.k_scale"] = torch.tensor([2.0])
    save_file(state, tmp_path / "model.safetensors")
    mapped = load(tmp_path)
    assert torch.equal(
        mapped.state["decoder.layers.1.feed_forward.down.weight"],
        plain["model.layers.1.mlp.down_proj.weight"],
    )
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert_equal(load(tmp_path).state, mapped.state)


def test_the_type_of_the_model(tmp_path: Path) -> None:
    """config.json's, or that of the weights that are not quantised."""
    model = theirs("llama")
    state, _ = tensors(model, LAYOUTS["fp8-blocks"])
    half = {
        name: tensor if "weight_scale" in name or tensor.dtype != torch.float32 else tensor.half()
        for name, tensor in state.items()
    }
    quantization = LAYOUTS["fp8-blocks"].config()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
        ({"dtype": "float8_e4m3fn"}, "float16"),
        ({"dtype": None}, "float16"),
    ]
    for config, stored in cases:
        write(tmp_path, model, half, quantization_config=quantization, **config)
        assert load(tmp_path).stored == stored


def test_a_converted_model(tmp_path: Path) -> None:
    """With the same numbers, without the scales."""
    given = ragged(theirs("llama"))
    for layout in ("fp8-blocks", "int-channel"):
        source, target = tmp_path / layout, tmp_path / f"{layout}-int8"
        write_quantised(source, theirs("llama"), LAYOUTS[layout])
        model = decoding.load(source, "cpu", "int8", threads=1)
        model.save(target)
        again = decoding.load(target, threads=1)
        assert again.dtype == torch.int8
        found, expected = (m.generate(**given, max_new_tokens=TOKENS) for m in (again, model))
        assert torch.equal(found, expected)


def test_fingerprints_tell_scales_apart(tmp_path: Path) -> None:
    write_quantised(tmp_path, theirs("llama"), LAYOUTS["fp8-blocks"])
    found = fingerprint(load(tmp_path).state)  # type: ignore[arg-type]
    assert fingerprint(load(tmp_path).state) == found  # type: ignore[arg-type]
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.0.mlp.down_proj.weight_scale_inv"] *= 2
    save_file(state, tmp_path / "model.safetensors")
    assert fingerprint(load(tmp_path).state) != found  # type: ignore[arg-type]


def test_torch_is_not_needed(tmp_path: Path) -> None:
    for layout in ("fp8-bfloat16-scales", "int-channel"):
        write_quantised(tmp_path / layout, theirs("llama"), LAYOUTS[layout])
    code = (
        "import sys; sys.modules['torch'] = None; import decoding\n"
        "for path in sys.argv[1:]: decoding.load(path, 'cpu', 'int8', threads=1)"
    )
    paths = [str(path) for path in tmp_path.iterdir()]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
