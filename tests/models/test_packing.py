"""Weights on their way to the engine: types, int8 numbers, panels, and what is stored once."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import decoding
from decoding import _C
from decoding.models import load
from decoding.models.weights.panels import NOISE, fill_panels, noise, panel_shape, quantise
from decoding.models.weights.placed import companions, is_linear, module, pack
from tests.conftest import random
from tests.support.random_models import reference

GROUPS = {torch.float32: 1, torch.bfloat16: 2, torch.int8: 4}  # inputs of an output side by side


def panels(weight: Tensor) -> Tensor:
    shape = panel_shape(weight.shape[0], weight.shape[1], weight.dtype)
    packed = torch.full(shape, 77).to(weight.dtype)
    fill_panels(packed, weight)
    return packed


@pytest.mark.parametrize("dtype", GROUPS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 3), (1, 5), (65, 4), (130, 1), (128, 8)])
def test_panels(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight = (random(outputs, inputs) * 40).to(dtype)
    packed, group = panels(weight), GROUPS[dtype]
    lines = math.ceil(inputs / group)
    assert packed.shape == (math.ceil(outputs / 64), lines, 64 * group)
    found = packed.view(-1, lines, 64, group)
    for output in range(outputs):
        row = found[output // 64, :, output % 64].flatten()
        assert torch.equal(row[:inputs], weight[output]) and row[inputs:].eq(0).all()
    assert found.transpose(1, 2).reshape(-1, lines * group)[outputs:].eq(0).all()


@pytest.mark.parametrize("dtype", GROUPS, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_engine_fills_panels_part_by_part(dtype: torch.dtype, threads: int) -> None:
    for outputs, inputs in [(64, 3), (1, 5), (65, 4), (130, 33), (200, 64), (70, 130)]:
        weight = (random(outputs, inputs) * 40).to(dtype)
        packed, first = torch.full_like(panels(weight), 77), 0
        for part in weight.split(
            [outputs // 3, outputs // 2, outputs - outputs // 3 - outputs // 2]
        ):
            assert _C.fill_panels(packed, part.contiguous(), first, threads)
            first += len(part)
        assert torch.equal(packed, panels(weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_engine_finds_what_is_not_finite(dtype: torch.dtype) -> None:
    weight = torch.full((70, 33), torch.finfo(dtype).max, dtype=dtype)
    packed = torch.empty(panel_shape(70, 33, dtype), dtype=dtype)
    for number in (math.inf, -math.inf, math.nan):
        assert _C.fill_panels(packed, weight, 0, 1)
        bad = weight.clone()
        bad[69, 32] = number
        assert not _C.fill_panels(packed, bad, 0, 1) and not fill_panels(packed, bad)


def test_int8_numbers_are_those_of_the_formula() -> None:
    weight = random(70, 33)
    weight[3] = 0
    weight[4] = weight[4] * 1e-40  # below the normal range
    weight[5, :3] = torch.tensor([254.0, 1.0, 3.0])  # in the middle between two numbers
    weight[5, 3:] = 0
    numbers, scale, sums = quantise(weight)
    assert (numbers.dtype, scale.dtype, sums.dtype) == (torch.int8, torch.float32, torch.int32)
    exact = weight.double().numpy()
    largest = np.abs(exact).max(1)
    assert np.allclose(
        scale.numpy(), np.where(largest > 0, largest / 127, 1), rtol=1e-7, atol=1e-45
    )
    expected = np.rint(exact / scale.double().numpy()[:, None])  # ties to the even number
    assert np.array_equal(np.delete(numbers, 4, 0), np.delete(expected, 4, 0))
    assert numbers[5, :3].tolist() == [127, 0, 2] and numbers[3].eq(0).all()
    assert numbers.abs().amax(1).tolist() == [0 if row == 3 else 127 for row in range(70)]
    assert torch.equal(sums.long(), numbers.long().sum(1))


def test_noise_is_that_of_rounding() -> None:
    for weight in (random(50, 640), random(50, 640) ** 3, random(3, 640).exp()):
        numbers, scale, _ = quantise(weight)
        error = (weight - numbers * scale[:, None]).norm() / weight.norm()
        assert noise(weight) == pytest.approx(float(error), rel=0.2)
    assert noise(torch.zeros(3, 4)) == 0


def stored_types(packed: dict[str, Tensor]) -> dict[str, torch.dtype]:
    return {name: packed[name].dtype for name in packed if name.endswith(("weight", "bias"))}


@pytest.mark.parametrize("dtype", GROUPS, ids=str)
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_types_and_names_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    loaded = load(reference(name))
    packed = pack({key: t.double() for key, t in loaded.state.items()}, loaded.spec, dtype=dtype)
    linear = [key for key in loaded.state if is_linear(key)]
    beside = {part for key in linear for part in companions(key)} if dtype == torch.int8 else set()
    assert packed.keys() == loaded.state.keys() | beside
    for key, original in loaded.state.items():
        tensor = packed[key]
        assert tensor.is_contiguous() and tensor.data_ptr() % 256 == 0
        if key in linear and dtype == torch.int8:
            found = quantise(original)
            assert torch.equal(tensor, panels(found.numbers)), key
            for part, expected in zip(companions(key), found[1:], strict=True):
                assert torch.equal(packed[part], expected)
        elif key in linear:
            assert torch.equal(tensor, panels(original.to(dtype))), key
        elif key.endswith("tokens") and dtype != torch.float32:
            assert torch.equal(tensor, original.bfloat16())
        else:
            assert tensor.dtype == torch.float32 and torch.equal(tensor, original), key


@pytest.mark.parametrize("dtype", GROUPS, ids=str)
def test_a_tied_table_is_stored_once_where_its_type_allows(dtype: torch.dtype) -> None:
    loaded = load(reference("gpt2-tied"))
    packed = pack(loaded.state, loaded.spec, dtype=dtype)
    tokens, output = packed["decoder.embed.tokens"], packed["output.weight"]
    if dtype == torch.int8:  # it is read with more bits than it is multiplied with
        assert (
            tokens.dtype == torch.bfloat16 and tokens.shape == loaded.state["output.weight"].shape
        )
    else:
        assert tokens.dtype == dtype and tokens.data_ptr() == output.data_ptr()
        assert tokens.shape == output.shape


def test_weights_that_int8_is_too_coarse_for_stay_bfloat16() -> None:
    loaded = load(reference("marian-large"))
    assert not decoding.Model(loaded, dtype=torch.int8, threads=1).unquantized
    name = "decoder.layers.0.feed_forward.down.weight"
    weight = loaded.state[name]
    weight[:, 7] *= 300  # one input dwarfs all others
    assert noise(weight) > NOISE > max(noise(t) for n, t in loaded.state.items() if is_linear(n))
    loaded = dataclasses.replace(loaded, state={**loaded.state, name: weight})
    model = decoding.Model(loaded, dtype=torch.int8, threads=1)
    with pytest.warns(DeprecationWarning, match="Model.kept is deprecated"):
        assert model.kept == [name]
    assert model.unquantized == [name] and not decoding.Model(loaded, threads=1).unquantized
    packed = pack(loaded.state, loaded.spec, dtype=torch.int8)
    assert torch.equal(packed[name], panels(weight.bfloat16()))
    assert not packed.keys() & set(companions(name))


def test_pack_names_what_is_wrong() -> None:
    spec = load(reference("gpt2")).spec
    state = module(spec).state_dict()
    name = "decoder.layers.1.feed_forward.up.weight"
    outputs, inputs = state[name].shape
    for wrong, message in [
        ({n: t for n, t in state.items() if n != name}, f"the weight {name} is missing"),
        (state | {"decoder.rotary": torch.zeros(30)}, "no weights named decoder.rotary"),
        (
            state | {name: state[name].t()},
            rf"{name} must have the shape \[{outputs}, {inputs}\], got",
        ),
        (state | {name: state[name] / 0}, f"{name} holds NaN or inf"),
    ]:
        with pytest.raises(ValueError, match=message):
            pack(wrong, spec)
