"""GPU memory: planned once, within its bound, and nothing beside it.

These tests read how much of the GPU is free, so nothing else may use it meanwhile.
"""

from __future__ import annotations

import ctypes
import gc
import math
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import decoding
from decoding import _C, Limits
from decoding.binding import engine_packer
from decoding.common.device import Device
from decoding.engine.allocation import copied_to, empty
from decoding.engine.memory import available_memory
from decoding.engine.pool import engine_limits
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.torch.module import module
from decoding.models.weights.dtypes import as_array, as_tensor
from decoding.models.weights.lazy import identity
from decoding.models.weights.placed import pack
from tests.server.models import sentence_model
from tests.support.demo import DEMO
from tests.support.random_models import load

pytestmark = pytest.mark.gpu
CUDA = Device("cuda", 0)
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def used() -> tuple[int, int, int]:
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), free


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["marian-large", "gpt2-large"])
def test_calls_of_the_planned_size_allocate_nothing(name: str, dtype: str) -> None:
    source = 0 if name.startswith("gpt2") else 24
    limits = Limits(batch=16, beams=4, source=source, prompt=24, target=24)
    model = load(name, "cuda", dtype=dtype, limits=limits)
    searches: list[dict[str, Any]] = [
        {"num_beams": 4},
        {"num_beams": 1},
        {"do_sample": True, "top_p": 0.9},
        {"do_sample": True, "num_return_sequences": 3, "top_k": 0},
        {"num_beams": 2, "early_stopping": True, "eos_token_id": None},
    ]

    def calls() -> None:
        for batch in (1, 5, 16):
            ids = torch.randint(12, 50, (batch, 20), generator=torch.Generator().manual_seed(batch))
            for options in searches:
                model.generate(ids, max_new_tokens=24, **options)

    for _ in range(3):  # a graph is captured when a size comes again
        calls()
    before = used()
    for _ in range(3):
        calls()
    assert used() == before


def transformer_base() -> ModelSpec:
    stack = StackSpec(
        layers=6, hidden=512, heads=8, head_dim=64, ffn=2048, vocab=32000, positions=512,
        activation="silu", embed_scale=512**0.5, embed_norm=False, pre_norm=False,
        final_norm=False, eps=1e-5, attention_scale=(0.125,) * 6,
    )  # fmt: skip
    return ModelSpec(encoder=stack, decoder=stack)


def test_the_memory_of_a_transformer_base() -> None:
    """At most 1.15 times weights, keys and values, and logits, at 32x4, 128 to 128 tokens."""
    spec, layers, hidden, rows = transformer_base(), 6, 512, 32 * 4
    state = module(spec).state_dict()
    table = state["output.weight"]
    state |= {f"{side}.embed.tokens": table for side in ("encoder", "decoder")}
    weights = pack(state, spec, engine_packer(2, CUDA), "cuda", "float16")
    engine = _C.Session(spec, weights, device=0)
    limits = Limits(batch=32, beams=4, source=128, target=128, eos=1)
    buffers, planned = engine.plan(engine_limits(limits))
    blocks = {identity(weight)[0]: weight.nbytes for weight in weights.values()}
    stored = sum(blocks.values())
    assert stored < 2 * 62e6, "one table for source, target and output"
    kept = 2 * 2 * layers * hidden * (rows * 128 + 32 * 128)
    logits = 2 * rows * 32000
    assert stored + planned <= 1.15 * (stored + kept + logits), "\n".join(
        f"{b.name} {b.type} {list(b.shape)} {b.bytes}" for b in buffers
    )
    assert math.isclose(kept, 252e6, rel_tol=0.01)


def test_memory_that_a_gpu_does_not_have() -> None:
    """Beyond the GPU's size, and beyond what others have left of it; the model lives on."""
    model = load("marian-large", "cuda")
    ids, many = torch.arange(12, 52).view(2, 20), torch.full((25, 90), 12)
    options = {"num_beams": 20, "max_new_tokens": 90, "eos_token_id": None}
    before = model.generate(ids, num_beams=4)
    words = r"needs \d{9,} bytes .* on cuda:0 .*available: \d+ bytes .*lower (batch|beams|target)"
    with pytest.raises(decoding.Error, match=words):
        load("marian-large", "cuda", limits=Limits(batch=10**5, beams=8, source=96, target=96))
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - 100 * 2**20, dtype=torch.uint8, device="cuda")
    with pytest.raises(decoding.Error, match=words):
        model.generate(many, **options)
    assert torch.equal(model.generate(ids, num_beams=4), before)
    del hog  # which torch's allocator holds still
    assert model.generate(many, **options).shape == (25, 91)


def test_keys_that_attention_cannot_count() -> None:
    limits = Limits(batch=10**6, beams=32, source=8, prompt=2, target=64, eos=1)
    engine = load("marian", "cuda")._session._engine
    pool = torch.empty(1024, dtype=torch.uint8, device="cuda")
    words = r"batch 1000000 with 32 beams needs keys of \d+ positions; .* less than \d+"
    with pytest.raises(decoding.Error, match=words):
        engine.bind(engine_limits(limits), pool)


def test_more_beams_than_a_block_can_sort() -> None:
    """Candidates are sorted in shared memory: the number of beams squared must fit."""
    model = load("marian", "cuda")
    ids = torch.arange(12, 52).view(2, 20)
    before = model.generate(ids, num_beams=4)
    with pytest.raises(decoding.Error, match=r"bytes of shared memory.*lower num_beams"):
        model.generate(ids, num_beams=200, max_new_tokens=4)
    assert torch.equal(model.generate(ids, num_beams=4), before)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "bfloat16"])
def test_an_array_and_what_torch_sees_of_it(dtype: str) -> None:
    tensor = torch.arange(60).to(getattr(torch, dtype)).view(3, 4, 5)
    array: Any = copied_to(CUDA, as_array(tensor))
    view = as_tensor(array)
    assert view.device == torch.device("cuda", 0) and torch.equal(view.cpu(), tensor)
    assert torch.equal(as_tensor(array[1:]), view[1:]) and torch.equal(as_tensor(array[2]), view[2])
    view[1] = 7
    assert np.array_equal(as_array(array), as_array(view))
    column = array.view(dtype, (3, 4), strides=(20, 5), offset=2 * view.itemsize)
    assert torch.equal(as_tensor(column), view[:, :, 2])
    assert torch.equal(as_tensor(as_array(column)), view[:, :, 2].cpu())


def test_what_torch_sees_leaves_nothing_behind() -> None:
    """Through CUDA's array interface torch kept five objects each time."""
    array, times = empty(64, CUDA), 1000
    as_tensor(array)
    before = sys.getallocatedblocks()
    for _ in range(times):
        as_tensor(array)
    assert sys.getallocatedblocks() - before < times


def test_memory_goes_with_its_last_view() -> None:
    """All but what the driver and other processes take or give back of the GPU meanwhile."""
    little = 1 << 20
    gc.collect()
    torch.cuda.synchronize()
    before, size = available_memory(CUDA), 1 << 30
    assert before is not None
    tensor = as_tensor(empty(size, CUDA))[5:9]
    assert available_memory(CUDA) == pytest.approx(before - size, abs=little)
    del tensor
    gc.collect()
    assert available_memory(CUDA) == pytest.approx(before, abs=little)
    with pytest.raises(MemoryError):
        empty(before + (1 << 30), CUDA)
    assert torch.ones(3, device="cuda").sum() == 3  # the failure has left nothing behind


def assert_second_alone() -> None:
    """This process has a context, some hundred MB, on the second GPU and none on the first."""
    state = ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState
    flags, active = ctypes.c_uint(), (ctypes.c_int(), ctypes.c_int())
    for device in range(2):
        assert state(device, ctypes.byref(flags), ctypes.byref(active[device])) == 0
    assert (active[0].value, active[1].value) == (0, 1)


def live_on_the_second() -> None:
    """Models from their loads to their ends, in several threads; torch comes last."""
    with decoding.load(DEMO, "cuda:1") as demo:
        said = demo.translate(["Guten Morgen!"])
        thread = threading.Thread(target=lambda: said.extend(demo.translate(["Guten Morgen!"])))
        thread.start()
        thread.join()
        assert said[0] == said[1]
    assert_second_alone()
    with tempfile.TemporaryDirectory() as folder:
        sentence_model(Path(folder))
        with decoding.load(folder, "cuda:1", detect_overflow=True) as encoder:
            encoder.embed(["ab"])
    assert_second_alone()
    model = load("gpt2", "cuda:1", detect_overflow=True)
    model.generate([[5, 6]], max_new_tokens=5, num_beams=2)
    with decoding.Engine(model) as engine:
        engine.submit([5, 6], max_new_tokens=5).result()
    ends = threading.Thread(target=model.close)
    ends.start()
    ends.join()
    del model, engine
    gc.collect()
    assert_second_alone()
    assert torch.cuda.current_device() == 0


@two_gpus
def test_a_model_on_the_second_gpu_leaves_the_first_alone() -> None:
    """In a process that has used neither."""
    code = "from tests.engine.test_cuda_memory import live_on_the_second as live; live()"
    subprocess.run([sys.executable, "-c", code], check=True)


@two_gpus
def test_torch_stays_on_its_gpu() -> None:
    expected = load("gpt2", "cuda:0").generate([[5, 6]], max_new_tokens=5).tolist()
    model = load("gpt2", "cuda:1")
    for _ in range(3):
        ones = torch.ones(3, device="cuda")
        assert model.generate([[5, 6]], max_new_tokens=5).tolist() == expected
        assert torch.cuda.current_device() == 0 and ones.device.index == 0
        assert (ones + torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
