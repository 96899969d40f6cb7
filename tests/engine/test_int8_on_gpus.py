"""int8 weights on a GPU, beside float16 or bfloat16: how they are packed, and what models say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from torch import Tensor

import decoding
from decoding.binding import engine_packer
from decoding.common.device import Device
from decoding.engine import devices
from decoding.models import Loaded, load
from decoding.models.files import Directory
from decoding.models.weights import placed
from decoding.models.weights.converted import load as load_converted
from decoding.models.weights.dtypes import as_array, as_tensor
from decoding.models.weights.panels import (
    NOISE,
    Packer,
    noise,
    panel_shape,
    quantised_stride,
    rows_of_panels,
)
from decoding.models.weights.places import companions, is_linear
from tests.conftest import random
from tests.models.test_demo_model import SENTENCES
from tests.support.comparison import assert_as_exact
from tests.support.demo import DEMO
from tests.support.families import FAMILIES, ragged
from tests.support.packed import PACKER, int8_rows, pack, quantise, squares
from tests.support.random_models import reference

GPU = Device("cuda", 0)
ENGINE = engine_packer(threads=2)
HALVES = ["float16", "bfloat16"]
NAMES = ["bart", "t5-1.1", "llama", "gptj", "gemma2"]
ROWS, FEW = 300, 30  # whose tokens are scored at once, and one after the other


@pytest.mark.parametrize("packer", [PACKER, ENGINE], ids=["torch", "engine"])
def test_panels_become_rows(packer: Packer) -> None:
    for outputs, inputs in [(1, 1), (3, 16), (64, 17), (65, 72), (130, 63), (70, 200), (128, 512)]:
        numbers = torch.randint(-128, 128, (outputs, inputs)).to(torch.int8)
        panels = np.empty(panel_shape(outputs, inputs, "int8"), np.int8)
        lines = torch.zeros(-(-outputs // 64) * 64, -(-inputs // 4) * 4, dtype=torch.int8)
        lines[:outputs, :inputs] = numbers
        tiles = lines.view(len(panels), 64, -1, 4).transpose(1, 2)
        panels[:] = tiles.reshape(panels.shape).numpy()
        rows = np.full((outputs, quantised_stride(inputs)), 77, np.int8)
        packer.interleave(rows, panels, inputs)
        assert torch.equal(torch.from_numpy(rows), int8_rows(numbers))
        # The order that the contract writes down.
        order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
        whole = np.zeros((outputs, quantised_stride(inputs)), np.int8)
        whole[:, :inputs] = numbers.numpy()
        assert (rows == whole.reshape(outputs, -1, 16)[:, :, order].reshape(rows.shape)).all()


def test_rows_of_panels() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for outputs, inputs in [(1, 1), (64, 3), (130, 33)]:
            weight = random(outputs, inputs).to(dtype)
            name = str(dtype).removeprefix("torch.")
            panels = torch.zeros(panel_shape(outputs, inputs, name), dtype=dtype)
            assert ENGINE.fill(panels, weight, 0, None, None)
            found = np.ascontiguousarray(rows_of_panels(as_array(panels), outputs, inputs))
            assert torch.equal(as_tensor(found), weight)


def coarse(name: str = "marian-large") -> tuple[Loaded, str]:
    """A model with a weight that int8 is too coarse for."""
    loaded, name = load(reference(name)), "decoder.layers.0.feed_forward.down.weight"
    weight = loaded.state[name]
    weight[:, 7] *= 300  # one input dwarfs all others
    return dataclasses.replace(loaded, state={**loaded.state, name: weight}), name


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_what_a_gpu_is_given(half: torch.dtype) -> None:
    loaded, kept = coarse()
    name_of_half = str(half).removeprefix("torch.")
    found = placed.pack(loaded.state, loaded.spec, ENGINE, "cuda", "int8", name_of_half)
    packed = {name: as_tensor(numbers) for name, numbers in found.items()}
    quantised = {name for name in loaded.state if is_linear(name) and name != kept}
    assert packed.keys() == loaded.state.keys() | {companions(name)[0] for name in quantised}
    for name, original in loaded.state.items():
        tensor = packed[name]
        assert tensor.is_contiguous() and tensor.data_ptr() % 256 == 0
        if name in quantised:
            numbers, scale, _ = quantise(original)
            assert torch.equal(tensor, int8_rows(numbers)), name
            assert torch.equal(packed[companions(name)[0]], scale)
        elif name.endswith((".tokens", ".positions")) or name == kept:
            assert torch.equal(tensor, original.to(half)), name
        else:
            assert tensor.dtype == torch.float32 and torch.equal(tensor, original), name


@pytest.mark.parametrize("name", ["marian-large", "gpt2-tied"])
def test_a_converted_model_becomes_the_same(name: str, tmp_path: Path) -> None:
    loaded = load(reference(name)) if name == "gpt2-tied" else coarse(name)[0]
    decoding.Model(loaded, dtype="int8", threads=1).save(tmp_path)
    converted = load_converted(Directory(tmp_path))
    expected = pack(loaded.state, loaded.spec, "cuda", torch.int8)
    found = placed.repack(converted.tensors, converted.spec, ENGINE, "bfloat16")
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(as_tensor(found[key]), tensor), key
    narrow = placed.repack(converted.tensors, converted.spec, ENGINE, "float16")
    table = as_tensor(narrow["decoder.embed.tokens"])
    assert torch.equal(table, expected["decoder.embed.tokens"].half())


def test_types_beside_int8() -> None:
    def beside(given: str, stored: str) -> str:
        return devices.choose_kv_cache_dtype(given, GPU, "int8", stored)

    assert devices.choose_dtype("int8", GPU, "float32") == "int8"
    assert devices.choose_dtype("auto", GPU, "int8") == "float32"  # a checkpoint of whole numbers
    found = {
        stored: beside("auto", stored) for stored in ("float32", "float16", "bfloat16", "int8")
    }
    assert found == dict(float32="float16", float16="float16", bfloat16="bfloat16", int8="bfloat16")
    assert beside("bfloat16", "float32") == "bfloat16" and beside("fp16", "int8") == "float16"
    with pytest.raises(ValueError, match='"int8" keeps weights that a checkpoint stores in fp8'):
        devices.choose_dtype("fp8", GPU, "bfloat16")
    with pytest.raises(ValueError, match="one of float16, bfloat16, fp8 for .* 'float32'"):
        beside("float32", "float32")
    with pytest.raises(ValueError, match="converted to bfloat16 is for the CPU: load the check"):
        devices.choose_packed("cuda:0", "auto", "bfloat16")


def test_a_number_that_half_cannot_hold_is_named() -> None:
    loaded = load(reference("gpt2"))
    table = loaded.state["decoder.embed.tokens"] * 1e6
    state = {**loaded.state, "decoder.embed.tokens": table}
    with pytest.raises(
        ValueError, match='tokens holds .*float16 ends at.*kv_cache_dtype="bfloat16"'
    ):
        placed.pack(state, loaded.spec, ENGINE, "cuda", "int8", "float16")


# On a GPU.


def dequantised(loaded: Loaded) -> Loaded:
    """With the numbers that int8 makes of its linear weights."""

    def seen(name: str, weight: Tensor) -> Tensor:
        if not is_linear(name) or noise(*squares(weight), weight.shape[1]) > NOISE:
            return weight
        numbers, scale, _ = quantise(weight)
        return numbers * scale[:, None]

    state: Mapping[str, Tensor] = {name: seen(name, loaded.state[name]) for name in loaded.state}
    return dataclasses.replace(loaded, state=state)


@cache
def family(name: str) -> tuple[Any, Loaded]:
    """The transformers model, and its weights."""
    theirs = FAMILIES[name].model()
    return theirs, load(theirs)


def on_gpu(loaded: Loaded, dtype: str, half: str) -> decoding.Model:
    return decoding.Model(loaded, device=GPU, dtype=dtype, kv_cache_dtype=half)


def logprobs(model: decoding.Model, given: dict[str, Any], labels: Tensor | None) -> Tensor:
    if labels is None:
        return model.score(given["input_ids"]).token_logprobs[:, 1:]
    return model.score(**given, labels=labels).token_logprobs


@pytest.mark.gpu
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", NAMES)
def test_models_are_as_exact_as_in_half_precision(name: str, half: str) -> None:
    """With the same weights: of many rows at once, and of each alone."""
    theirs, loaded = family(name)
    given = ragged(theirs, ROWS, 12)
    labels = None
    if theirs.config.is_encoder_decoder:
        labels = torch.randint(4, 60, (ROWS, 12), generator=torch.Generator().manual_seed(2))
    plain = dequantised(loaded)
    exact = logprobs(decoding.Model(plain, threads=2), given, labels)
    theirs_in_half = logprobs(on_gpu(plain, half, half), given, labels)
    model = on_gpu(loaded, "int8", half)
    assert model.dtype == torch.int8 and model.kv_cache_dtype == getattr(torch, half)
    dtype = getattr(torch, half)
    found = logprobs(model, given, labels)
    assert_as_exact(found, theirs_in_half, exact, dtype)
    alone = []
    for i in range(FEW):
        row = {key: tensor[i : i + 1] for key, tensor in given.items()}
        alone.append(logprobs(model, row, None if labels is None else labels[i : i + 1]))
    width = max(part.shape[1] for part in alone)
    padded = torch.cat(
        [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in alone]
    )
    kept = exact[:FEW, :width]
    assert_as_exact(padded, theirs_in_half[:FEW, :width], kept, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("half", HALVES)
def test_translations_are_as_good(half: str) -> None:
    """In steps of one row and of many: BLEU of the translations in float16 as references, with the
    same weights."""
    loaded = load(DEMO)
    exact = on_gpu(dequantised(loaded), half, half)
    model = on_gpu(loaded, "int8", half)
    assert not model.unquantized
    many = model.translate(SENTENCES)
    assert sacrebleu.corpus_bleu(many, [exact.translate(SENTENCES)]).score > 97
    few = [model.translate(text) for text in SENTENCES[:20]]
    assert sacrebleu.corpus_bleu(few, [many[:20]]).score > 95


@pytest.mark.gpu
def test_converted_models_run_on_both_devices(tmp_path: Path) -> None:
    decoding.load(DEMO, "cpu", "int8", threads=2).save(tmp_path)
    model = decoding.load(tmp_path, "cuda")
    assert (model.dtype, model.kv_cache_dtype) == (torch.int8, torch.bfloat16)
    direct = decoding.load(DEMO, "cuda", "int8", kv_cache_dtype="bfloat16")
    assert model.translate(SENTENCES[:20]) == direct.translate(SENTENCES[:20])
    assert decoding.load(tmp_path, "cuda", kv_cache_dtype="float16").translate(SENTENCES[:5])
    assert decoding.load(tmp_path, "cpu").place.type == "cpu"


@pytest.mark.gpu
def test_what_int8_is_too_coarse_for_stays_in_half() -> None:
    loaded, name = coarse()
    model = on_gpu(loaded, "int8", "float16")
    assert model.unquantized == [name]
    assert "products" in str(model.memory_plan().table())
    assert model.weight_bytes < on_gpu(loaded, "float16", "float16").weight_bytes
