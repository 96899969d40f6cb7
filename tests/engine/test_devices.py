"""Devices and types: what load() chooses, and what it says where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import decoding
from decoding.common.device import Device
from decoding.common.warn import warn_once
from decoding.engine import devices
from decoding.generation.batching import common_device
from decoding.models import load
from decoding.models.torch.module import module
from decoding.models.weights.dtypes import name_of
from tests.support.packed import pack
from tests.support.random_models import ours, reference, spec_of

CUDA, CPU = Device("cuda", 0), Device("cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with an A100, and a build for it; tests take away from it."""
    monkeypatch.setattr(devices, "GPUS", (Path(__file__),))
    there = SimpleNamespace(archs="80 90", torch="13.0", gpus=1, capability=(8, 0))
    engine = SimpleNamespace(Error=decoding.Error)
    monkeypatch.setattr(devices, "_C", engine)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(there.torch and there.gpus))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there.gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: there.capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")

    def changed(**values: Any) -> None:
        vars(there).update(values)
        engine.cuda_archs = there.archs
        monkeypatch.setattr(torch.version, "cuda", there.torch)

    changed()
    return changed


def test_auto_is_the_gpu_where_everything_is_there(machine: Any) -> None:
    assert devices.choose_device("auto") == CUDA
    for missing in ({"archs": ""}, {"gpus": 0}, {"torch": None}, {"archs": "90"}):
        machine(**{"archs": "80 90", "torch": "13.0", "gpus": 1} | missing)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert devices.choose_device("auto") == CPU


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ({"archs": ""}, "has Some GPU: this build has no CUDA engine: build it again"),
        ({"archs": "90"}, r"has Some GPU: .* compute capability 8.0, this build needs 9.0"),
        ({"torch": None}, "has an NVIDIA GPU: torch .* was built without CUDA.*install a torch"),
    ],
)
def test_a_gpu_that_auto_does_not_take_is_told_once(
    missing: dict[str, Any],
    said: str,
    machine: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warn_once.cache_clear()
    machine(**missing)
    with pytest.warns(UserWarning, match=said):
        devices.choose_device("auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        devices.choose_device("auto")
        warn_once.cache_clear()
        if "torch" in missing:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
            devices.choose_device("auto")
        machine(gpus=0, torch="13.0", archs="80")
        devices.choose_device("auto")
        devices.choose_device("cpu")


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with pytest.warns(UserWarning, match="threads=64 is more than the 2 cores that this process"):
        assert devices.check_threads(64) == 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert devices.check_threads(2) == 2
        assert devices.check_threads(None) == torch.get_num_threads()
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        devices.check_threads(0)


@pytest.mark.parametrize("asked", [{}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "99"}])
def test_as_many_threads_without_torch(asked: dict[str, str]) -> None:
    code = "from decoding.engine.devices import usual_threads as count; before = count(); "
    code += "import torch; assert before == count() == torch.get_num_threads()"
    kept = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    subprocess.run([sys.executable, "-c", code], env=kept | asked, check=True)


def test_names_of_devices(machine: Any) -> None:
    for name in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
        assert devices.choose_device(name) == CUDA
    assert devices.choose_device("cpu") == devices.choose_device(torch.device("cpu"))
    with pytest.raises(ValueError, match="no cuda:1: this machine has 1 GPU"):
        devices.choose_device("cuda:1")
    for name in ("tpu", "meta", "cuda:x"):
        with pytest.raises(ValueError, match=f"got '{name}'"):
            devices.choose_device(name)


@pytest.mark.parametrize(
    ("missing", "error", "words"),
    [
        ({"archs": ""}, NotImplementedError, "no CUDA engine: build it again.*nvcc.*cpu"),
        ({"torch": None}, decoding.Error, "torch .* was built without CUDA.*cpu"),
        ({"gpus": 0}, decoding.Error, "finds no NVIDIA GPU.*CUDA 13.0.*nvidia-smi.*cpu"),
        ({"capability": (7, 5)}, NotImplementedError, "Some GPU .* 7.5, this build needs 8.0.*cpu"),
        ({"archs": "90a"}, NotImplementedError, "8.0, this build needs 9.0"),
    ],
)
def test_what_is_missing_is_named(
    machine: Any, missing: dict[str, Any], error: type[Exception], words: str
) -> None:
    machine(**missing)
    with pytest.raises(error, match=words):
        decoding.load(reference("gpt2"), device="cuda")


def test_types() -> None:
    for name in ("float32", "bfloat16", "int8"):
        for dtype in (name, getattr(torch, name)):
            assert decoding.load(reference("gpt2"), "cpu", dtype).dtype == getattr(torch, name)
    assert decoding.load(reference("gpt2"), "cpu").dtype == torch.float32
    with pytest.raises(NotImplementedError, match="one of float32, bfloat16, int8"):
        decoding.load(reference("gpt2"), "cpu", "float16")
    with pytest.raises(NotImplementedError, match="one of float32, float16, bfloat16"):
        devices.choose_dtype("int8", CUDA, "float32")
    with pytest.raises(ValueError, match="'float99'"):
        decoding.load(reference("gpt2"), "cpu", "float99")
    for stored in ("float32", "float16", "bfloat16"):
        assert devices.choose_dtype("auto", CUDA, stored) == stored
        assert devices.choose_dtype(torch.float16, CUDA, stored) == "float16"
    assert devices.choose_dtype("auto", CUDA, "float64") == "float32"


@pytest.mark.parametrize(
    ("isas", "half"),
    [(["avx512_bf16", "avx512", "portable"], "bfloat16"), (["avx512"], "float32")],
)
def test_auto_on_the_cpu_is_what_the_machine_computes_half_precision_with(
    monkeypatch: pytest.MonkeyPatch, isas: list[str], half: str
) -> None:
    monkeypatch.setattr(devices, "_C", SimpleNamespace(isas=lambda: isas))
    for stored in ("float16", "bfloat16"):
        assert devices.choose_dtype("auto", CPU, stored) == half
    for stored in ("float32", "float64"):
        assert devices.choose_dtype("auto", CPU, stored) == "float32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_type_of_a_checkpoint_is_that_of_most_of_its_numbers(dtype: torch.dtype) -> None:
    model = reference("gpt2")

    class GPT2LMHeadModel:
        config = model.config

        def state_dict(self) -> dict[str, torch.Tensor]:
            state = model.state_dict()
            return {name: t if t.ndim == 1 else t.to(dtype) for name, t in state.items()}

    assert load(GPT2LMHeadModel()).stored == name_of(dtype)


@pytest.mark.parametrize("name", ["marian", "gpt2-tied"])
def test_weights_for_a_gpu_are_plain(name: str) -> None:
    loaded = load(reference(name))
    packed = pack(loaded.state, loaded.spec, "meta", torch.bfloat16)
    assert packed.keys() == loaded.state.keys()
    for key, tensor in packed.items():
        original = loaded.state[key]
        assert tensor.shape == original.shape and tensor.is_contiguous(), key
        assert tensor.dtype == (torch.float32 if original.ndim == 1 else torch.bfloat16), key
        assert tensor.storage_offset() * tensor.itemsize % 256 == 0
    places = {(tensor.storage_offset(), tensor.dtype) for tensor in packed.values()}
    tied = [packed["output.weight"], packed["decoder.embed.tokens"]]
    assert tied[0].storage_offset() == tied[1].storage_offset(), "one table, stored once"
    assert len(places) < len(packed)


def test_numbers_that_a_type_cannot_hold() -> None:
    spec = spec_of(load(reference("gpt2")))
    state = module(spec).state_dict()
    name = "decoder.layers.1.feed_forward.up.weight"
    state[name][3, 4] = 7e4
    meta = "meta"
    with pytest.raises(ValueError, match=f"{name} holds 7e\\+04, and float16 .*bfloat16"):
        pack(state, spec, meta, torch.float16)
    pack(state, spec, meta, torch.bfloat16)
    state["decoder.norm.bias"][0] = 7e4  # norms stay float32
    state[name][3, 4] = 6e4
    pack(state, spec, meta, torch.float16)


def test_inputs_of_several_devices() -> None:
    ids = torch.tensor([[12, 13]])
    far = torch.empty_like(ids, device="meta")
    with pytest.raises(
        ValueError, match="one device, but input_ids is on cpu, attention_mask is on"
    ):
        ours("marian").generate(ids, attention_mask=far)
    with pytest.raises(ValueError, match="input_ids is on meta, but the model on cpu"):
        ours("marian").generate(far)
    assert common_device(CUDA, input_ids=ids, attention_mask=None) == "cpu"
    assert common_device(CUDA, input_ids=[[1]], attention_mask=None) == "cpu"
