"""Checkpoints as they are found: file layouts, stored types, damaged files."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.models import load
from tests.support.checkpoints import (
    FAMILIES,
    assert_same,
    gpt2,
    write,
)

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_save_pretrained_in_every_float_type(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = FAMILIES[family]().to(dtype)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    expected = dict(load(model).state)
    if dtype != torch.float32 and family == "marian":  # save_pretrained leaves out the sinusoids
        for side in ("encoder", "decoder"):
            expected[f"{side}.embed.positions"] = loaded.state[f"{side}.embed.positions"]
    assert_same(loaded.state, expected)
    assert loaded.directory == tmp_path
    assert loaded.architecture == type(model).__name__
    assert loaded.generation_config["eos_token_id"] == model.generation_config.eos_token_id


@pytest.mark.parametrize("family", FAMILIES)
def test_sharded_safetensors(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family]()
    model.save_pretrained(tmp_path, max_shard_size=4000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_same(load(tmp_path).state, load(model).state)


@pytest.mark.parametrize("family", FAMILIES)
def test_torch_files_whole_and_sharded(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family]()
    write(tmp_path, model)
    (tmp_path / "model.safetensors").unlink()
    state = model.state_dict()
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert_same(load(tmp_path).state, load(model).state)

    (tmp_path / "pytorch_model.bin").unlink()
    shard_of = {name: f"pytorch_model-{i % 3}.bin" for i, name in enumerate(state)}
    for shard in set(shard_of.values()):
        part = {name: state[name] for name in state if shard_of[name] == shard}
        torch.save(part, tmp_path / shard)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": shard_of}))
    assert_same(load(tmp_path).state, load(model).state)


def test_safetensors_win_over_torch_files(tmp_path: Path) -> None:
    model = gpt2()
    write(tmp_path, model)
    torch.save({}, tmp_path / "pytorch_model.bin")
    assert_same(load(tmp_path).state, load(model).state)


def test_refused_sources(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="never downloaded"):
        load("Helsinki-NLP/opus-mt-de-en")
    with pytest.raises(FileNotFoundError, match="config.json is missing"):
        load(tmp_path)
    with pytest.raises(TypeError, match="got int"):
        load(3)
    config = tmp_path / "config.json"
    config.write_text("{")
    with pytest.raises(ValueError, match="config.json is not valid JSON"):
        load(tmp_path)
    config.write_text("[]")
    with pytest.raises(ValueError, match="must hold a JSON object, got list"):
        load(tmp_path)
    config.write_text(json.dumps(gpt2().config.to_dict()))
    with pytest.raises(FileNotFoundError, match="holds no weights: expected one of model.safe"):
        load(tmp_path)


def test_damaged_files(tmp_path: Path) -> None:
    weights = write(tmp_path, gpt2()) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="model.safetensors cannot be read as weights"):
        load(tmp_path)
    weights.unlink()
    for content in (b"", b"not a torch file"):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ValueError, match="pytorch_model.bin cannot be read as weights"):
            load(tmp_path)


def test_a_lack_of_memory_is_none_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt2().save_pretrained(tmp_path)

    def no_room(*given: object, **how: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", no_room)
    with pytest.raises(MemoryError, match="Cannot allocate memory"):
        load(tmp_path)


def test_a_torch_file_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    (write(tmp_path, gpt2()) / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Path("code")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin cannot be read as weights"):
        load(tmp_path)


def test_damaged_shards(tmp_path: Path) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path, max_shard_size=4000)
    index = tmp_path / "model.safetensors.index.json"
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    state = load_file(shard)
    lost = next(iter(state))
    state["another"] = state.pop(lost)
    save_file(state, shard)
    with pytest.raises(ValueError, match=f"{shard.name} lacks the tensor {lost}"):
        load(tmp_path)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=f"{shard.name} is missing: model.safetensors"):
        load(tmp_path)
    index.write_text("{}")
    with pytest.raises(ValueError, match="is not an index of weights"):
        load(tmp_path)
