"""Devices and types: what load() chooses, and what it says where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import decoding
from decoding.common.arrays import is_tensor
from decoding.common.device import Device, torch_cuda
from decoding.common.warn import warn_once
from decoding.engine import allocation, devices, memory, opening
from decoding.generation.batching import common_device
from decoding.generation.request import drawn_seed
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
    engine = SimpleNamespace(Error=decoding.Error)

    def gpus() -> list[tuple[str, int]]:
        if not engine.found:
            raise decoding.Error("CUDA finds no NVIDIA GPU")
        return engine.found

    engine.gpus, engine.look_for_cublaslt = gpus, lambda folders: None
    monkeypatch.setattr(devices, "_C", engine)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")

    def changed(**values: Any) -> None:
        vars(engine).update({"cuda_archs": "80 90", "found": [("Some GPU", 80)]} | values)

    changed()
    return changed


NO_CUDA, NEWER = {"cuda_archs": ""}, {"cuda_archs": "90a"}
NO_GPU: dict[str, Any] = {"found": []}


def test_auto_is_the_gpu_where_everything_is_there(machine: Any) -> None:
    assert devices.choose_device("auto") == CUDA
    for missing in (NO_CUDA, NEWER, NO_GPU):
        machine(**missing)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert devices.choose_device("auto") == CPU


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (NO_CUDA, "has an NVIDIA GPU: this build has no CUDA engine: build it again"),
        (NEWER, r"has an NVIDIA GPU: Some GPU has compute capability 8.0, this build needs 9.0"),
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
        with monkeypatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            devices.choose_device("auto")
        machine(**NO_GPU)
        devices.choose_device("auto")
        devices.choose_device("cpu")
        machine(**NO_CUDA)
        monkeypatch.setattr("shutil.which", lambda name: None)  # of a container without GPUs
        devices.choose_device("auto")


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
        (NO_CUDA, NotImplementedError, "no CUDA engine: build it again.*nvcc.*cpu"),
        (NO_GPU, decoding.Error, "CUDA finds no NVIDIA GPU"),
        ({"found": [("Some GPU", 75)]}, NotImplementedError, "Some GPU .* 7.5.* needs 8.0.*cpu"),
        (NEWER, NotImplementedError, "8.0, this build needs 9.0"),
    ],
)
def test_what_is_missing_is_named(
    machine: Any, missing: dict[str, Any], error: type[Exception], words: str
) -> None:
    machine(**missing)
    with pytest.raises(error, match=words):
        decoding.load(reference("gpt2"), device="cuda")


def test_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(decoding.Error, match="torch .* was built without CUDA.*cpu"):
        devices.check_torch()


def test_types() -> None:
    for name in ("float32", "bfloat16", "int8"):
        for dtype in (name, getattr(torch, name)):
            assert decoding.load(reference("gpt2"), "cpu", dtype).dtype == getattr(torch, name)
    assert decoding.load(reference("gpt2"), "cpu").dtype == torch.float32
    with pytest.raises(NotImplementedError, match="one of float32, bfloat16, int8"):
        decoding.load(reference("gpt2"), "cpu", "float16")
    assert devices.choose_dtype("int8", CUDA, "float32") == "int8"
    with pytest.raises(ValueError, match="'float99'"):
        decoding.load(reference("gpt2"), "cpu", "float99")
    for stored in ("float32", "float16", "bfloat16"):
        assert devices.choose_dtype("auto", CUDA, stored) == stored
        assert devices.choose_dtype(torch.float16, CUDA, stored) == "float16"
    assert devices.choose_dtype("auto", CUDA, "float64") == "float32"


@pytest.mark.parametrize(
    ("isas", "half"),
    [
        (["avx512_bf16", "avx512", "portable"], "bfloat16"),
        (["avx512"], "float32"),
        (["neon_bf16", "neon", "portable"], "bfloat16"),
        (["neon_i8mm", "neon"], "float32"),
    ],
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
    packed = pack(loaded.state, loaded.spec, "cuda", torch.bfloat16)
    assert packed.keys() == loaded.state.keys()
    for key, tensor in packed.items():
        original = loaded.state[key]
        assert tensor.shape == original.shape and tensor.is_contiguous(), key
        assert tensor.dtype == (torch.float32 if original.ndim == 1 else torch.bfloat16), key
        assert tensor.data_ptr() % 256 == 0
    places = {(tensor.data_ptr(), tensor.dtype) for tensor in packed.values()}
    tied = [packed["output.weight"], packed["decoder.embed.tokens"]]
    assert tied[0].data_ptr() == tied[1].data_ptr(), "one table, stored once"
    assert len(places) < len(packed)


def test_numbers_that_a_type_cannot_hold() -> None:
    spec = spec_of(load(reference("gpt2")))
    state = module(spec).state_dict()
    name = "decoder.layers.1.feed_forward.up.weight"
    state[name][3, 4] = 7e4
    with pytest.raises(ValueError, match=f"{name} holds 7e\\+04, and float16 .*bfloat16"):
        pack(state, spec, "cuda", torch.float16)
    pack(state, spec, "cuda", torch.bfloat16)
    state["decoder.norm.bias"][0] = 7e4  # norms stay float32
    state[name][3, 4] = 6e4
    pack(state, spec, "cuda", torch.float16)


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


def test_a_torch_that_is_being_imported_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be at it, for as long as a second."""
    importing = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "torch", importing)
    assert not is_tensor([1]) and torch_cuda() is None
    assert devices.usual_threads() >= 1 and drawn_seed() >= 0


def test_memory_that_torch_only_holds_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = [100]  # bytes that torch has

    def array(size: int, device: int) -> str:
        if cached:
            raise MemoryError
        return f"{size} bytes"

    monkeypatch.setattr(memory, "_C", SimpleNamespace(free_memory=lambda device: 100))
    monkeypatch.setattr(allocation, "_C", SimpleNamespace(DeviceArray=array))
    for user in (memory, allocation):
        monkeypatch.setattr(user, "torch_cuda", lambda: None)
    assert memory.available_memory(CUDA) == 100
    with pytest.raises(MemoryError):
        allocation.empty(5, CUDA)
    held = SimpleNamespace(
        memory_reserved=lambda device: 70,
        memory_allocated=lambda device: 30,
        empty_cache=cached.clear,
    )
    for user in (memory, allocation):
        monkeypatch.setattr(user, "torch_cuda", lambda: held)
    assert memory.available_memory(CUDA) == 140
    assert allocation.empty(5, CUDA) == "5 bytes"


@pytest.mark.parametrize(
    ("device", "variable", "opened"),
    [
        ("cuda:3", "", [3]),
        ("cuda", "", [0]),
        ("auto", "", [0]),
        ("auto", "cpu", []),
        ("cpu", "cuda", []),
        ("gpu", "", []),  # load() refuses it
    ],
)
def test_a_gpu_is_opened_before_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, device: str, variable: str, opened: list[int]
) -> None:
    found: list[int] = []
    folders: list[str] = []

    def load_tuned_kernels(device: int) -> int:
        assert folders == devices.library_folders()
        found.append(device)
        raise RuntimeError("cuBLASLt is missing")

    engine = SimpleNamespace(
        cuda_archs="90",
        free_memory=lambda device: 1 << 30,
        look_for_cublaslt=folders.extend,
        load_tuned_kernels=load_tuned_kernels,
    )
    monkeypatch.setattr(opening, "_C", engine)
    monkeypatch.setenv("DECODING_DEVICE", variable)
    before = set(threading.enumerate())
    opening.open_gpu(device)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert found == opened
