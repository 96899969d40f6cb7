"""OpenNMT-py's checkpoints: those of its versions, with and without biases."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from decoding.models import load
from tests.support import toolkits
from tests.support.toolkits import assert_same, write_opennmt


@pytest.fixture(scope="module")
def opennmt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model, and what its file in the layout of version 3 is loaded as."""
    model = toolkits.opennmt_model()
    return model, load(write_opennmt(tmp_path_factory.mktemp("opennmt") / "model.pt", model))


def test_opennmt_ids_are_those_of_its_vocabulary(opennmt: tuple[Any, Any]) -> None:
    found = opennmt[1].generation_config
    assert found["decoder_start_token_id"] == found["bos_token_id"] == toolkits.START
    assert (found["eos_token_id"], found["pad_token_id"]) == (2, 1)


@pytest.fixture
def torchtext(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class of a package that is not there when a file is read."""
    module = ModuleType("torchtext")
    field = type("Field", (), {"__module__": "torchtext"})
    module.Field = field  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchtext", module)
    return field


@pytest.mark.parametrize("version", [0, 1, 2])
def test_opennmt_files_of_before_version_3(
    opennmt: tuple[Any, Any],
    version: int,
    torchtext: type,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Vocabularies are torchtext's objects, the generator has a first layer, and at first norms
    had names of their own."""
    model, expected = opennmt

    def made(**attributes: Any) -> Any:
        found = torchtext()
        found.__dict__.update(attributes)
        return found

    def vocab(side: str) -> Any:
        return made(itos=toolkits.TOKENS, stoi={"a": 1}, freqs=None)

    content = toolkits.opennmt_content(model)
    content["generator"] = {f"0.{name}": tensor for name, tensor in content["generator"].items()}
    if version == 0:
        content["vocab"] = [(side, vocab(side)) for side in ("src", "tgt")]
        old = {"weight": "a_2", "bias": "b_2"}
        for name in [name for name in content["model"] if "layer_norm" in name]:
            stem, _, kind = name.rpartition(".")
            content["model"][f"{stem}.{old[kind]}"] = content["model"].pop(name)
    elif version == 1:
        content["vocab"] = {side: made(vocab=vocab(side)) for side in ("src", "tgt")}
    else:
        content["vocab"] = {
            side: made(fields=[(side, made(vocab=vocab(side)))]) for side in ("src", "tgt")
        }
    for option in ("add_qkvbias", "add_ffnbias"):
        delattr(content["opt"], option)
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=version > 0)
    monkeypatch.delitem(sys.modules, "torchtext")
    loaded = load(tmp_path / "model.pt")
    assert_same(loaded, expected)
    assert loaded.generation_config == expected.generation_config
    assert loaded.config["vocabularies"] == expected.config["vocabularies"]


def test_opennmt_without_biases(opennmt: tuple[Any, Any], tmp_path: Path) -> None:
    model, expected = opennmt
    content = toolkits.opennmt_content(model, add_qkvbias=False)
    for name in [name for name in content["model"] if name.endswith(".bias")]:
        if ".linear_" in name or ".final_linear" in name:
            del content["model"][name]
    torch.save(content, tmp_path / "model.pt")
    state = load(tmp_path).state
    for name, tensor in expected.state.items():
        if "attention" in name and name.endswith(("qkv.bias", "q.bias", "kv.bias", "out.bias")):
            assert not state[name].any() and tensor.any(), name
        else:
            assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decoder_type": "transformer_lm"}, "decoder_type='transformer_lm'"),
        ({"encoder_type": "brnn"}, "encoder_type='brnn'"),
        ({"max_relative_positions": 20}, "max_relative_positions=20"),
        ({"position_encoding": False}, "position_encoding=False"),
        ({"copy_attn": True}, "copy_attn=True"),
        ({"layer_norm": "rms"}, "layer_norm='rms'"),
        ({"self_attn_type": "average"}, "self_attn_type='average'"),
        ({"pos_ffn_activation_fn": "silu"}, "pos_ffn_activation_fn='silu'"),
        ({"heads": 3}, "heads=3 does not divide a width of 32"),
        ({"dec_layers": 1}, "unexpected tensors.*decoder.transformer_layers.1."),
        ({"add_qkvbias": False}, "unexpected tensors.*self_attn.linear_keys.bias"),
    ],
)
def test_refused_opennmt_options(
    opennmt: tuple[Any, Any], changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(write_opennmt(tmp_path / "model.pt", opennmt[0], **changed))
