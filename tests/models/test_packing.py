"""Weights on their way to the engine: types, int8 numbers, panels, and what is stored once."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import decoding
from decoding.binding import engine_packer
from decoding.models import load
from decoding.models.torch.module import module
from decoding.models.weights.dtypes import as_array, as_tensor, name_of, without_gaps
from decoding.models.weights.panels import NOISE, Packer, noise, panel_shape
from decoding.models.weights.places import companions, is_linear
from tests.conftest import random
from tests.support.packed import PACKER, pack, quantise, squares
from tests.support.random_models import reference

GROUPS = {torch.float32: 1, torch.bfloat16: 2, torch.int8: 4}  # inputs of an output side by side


ENGINE = engine_packer(threads=2)


def panels(weight: Tensor) -> Tensor:
    """As numbers of its type lie."""
    outputs, group = weight.shape[0], GROUPS[weight.dtype]
    whole = torch.zeros(-outputs % 64 + outputs, -weight.shape[1] % group + weight.shape[1])
    whole[:outputs, : weight.shape[1]] = weight
    lines = whole.view(len(whole) // 64, 64, -1, group).transpose(1, 2)
    return lines.reshape(*lines.shape[:2], 64 * group).to(weight.dtype)


def quantised(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Panels, scale and sums; of no int8 zeros."""
    if dtype == torch.int8:
        numbers, scale, sums = quantise(weight)
        return panels(numbers), scale, sums
    return panels(weight.to(dtype)), torch.zeros(len(weight)), torch.zeros(len(weight)).int()


@pytest.mark.parametrize("dtype", GROUPS, ids=str)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packer", [PACKER, ENGINE], ids=["torch", "engine"])
def test_panels_are_filled_part_by_part(
    packer: Packer, stored: torch.dtype, dtype: torch.dtype
) -> None:
    for outputs, inputs in [(64, 3), (1, 5), (65, 4), (130, 33), (200, 64), (70, 130), (128, 512)]:
        weight = random(outputs, inputs) * 40
        weight[outputs // 3] *= 1e-40  # below the normal range
        weight[outputs // 2] *= 0
        expected = quantised(weight := weight.to(stored), dtype)
        packed = torch.full(panel_shape(outputs, inputs, name_of(dtype)), 77).to(dtype)
        scale, sums = torch.zeros(outputs), torch.zeros(outputs, dtype=torch.int32)
        beside = (scale, sums) if dtype == torch.int8 else (None, None)
        first = 0
        for part in weight.split(
            [outputs // 3, outputs // 2, outputs - outputs // 3 - outputs // 2]
        ):
            assert packer.fill(packed, part, first, *beside)
            first += len(part)
        for found, wanted in zip((packed, scale, sums), expected, strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_a_copy_without_gaps_has_the_same_numbers(stored: torch.dtype) -> None:
    tensor = random(6, 9).to(stored)
    array = as_array(tensor)
    assert without_gaps(array) is array
    copy = without_gaps(array[:, 2:7])
    assert copy.flags.c_contiguous and copy.dtype == array.dtype
    assert torch.equal(as_tensor(copy).float(), tensor[:, 2:7].float())


@pytest.mark.parametrize("dtype", GROUPS, ids=str)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packer", [PACKER, ENGINE], ids=["torch", "engine"])
def test_what_is_not_finite_is_found(
    packer: Packer, stored: torch.dtype, dtype: torch.dtype
) -> None:
    packed = torch.empty(panel_shape(70, 33, name_of(dtype)), dtype=dtype)
    scale, sums = torch.empty(70), torch.empty(70, dtype=torch.int32)
    beside = (scale, sums) if dtype == torch.int8 else (None, None)
    weight = torch.full((70, 33), torch.finfo(stored).max, dtype=stored)
    fits = dtype != torch.bfloat16 or stored != torch.float32  # else it rounds to infinity
    assert packer.fill(packed, weight, 0, *beside) == fits
    weight = torch.ones(70, 33, dtype=stored)
    assert packer.fill(packed, weight, 0, *beside)
    for number in (math.inf, -math.inf, math.nan, -math.nan):
        bad = weight.clone()
        bad[69, 32] = number
        assert not packer.fill(packed, bad, 0, *beside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packer", [PACKER, ENGINE], ids=["torch", "engine"])
def test_other_weights_keep_their_layout(
    packer: Packer, stored: torch.dtype, dtype: torch.dtype
) -> None:
    for shape in [(1,), (4097,), (3, 5, 7), (1100, 600)]:
        weight = random(*shape) * 40
        weight.view(-1)[::3] *= 1e-40  # below the normal range
        weight.view(-1)[::7] = -0.0
        weight = weight.to(stored)
        found = torch.full(shape, 77).to(dtype)
        assert packer.convert(found, weight)
        assert torch.equal(found, weight.to(dtype))
        assert torch.equal(found.signbit(), weight.signbit())
        for number in (math.inf, -math.inf, math.nan, -math.nan):
            bad = weight.clone()
            bad.view(-1)[-1] = number
            assert not packer.convert(found, bad)
    most = torch.full((9,), torch.finfo(stored).max, dtype=stored)
    fits = bool(most.to(dtype).isfinite().all())  # else it rounds to infinity
    assert packer.convert(torch.empty(9, dtype=dtype), most) == fits


@pytest.mark.parametrize("packer", [PACKER, ENGINE], ids=["torch", "engine"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_half_precision_rounds_as_torch_does(packer: Packer, stored: torch.dtype) -> None:
    """Also to the numbers below its normal range, and at its end."""
    weight = torch.logspace(-9, 4.81, 5000).to(stored)
    weight = torch.cat([weight, -weight, torch.tensor([2**-24, 2**-25, 3 * 2**-25, 2047 * 2**-25])])
    found, weight = torch.empty(len(weight), dtype=torch.float16), weight.to(stored)
    assert packer.convert(found, weight) and torch.equal(found, weight.half())
    for number in (65280.0, 65504.0, 65519.996, 65520.0, 65536.0):
        given = torch.tensor([number]).to(stored)
        assert packer.convert(found[:1], given) == bool(given.half().isfinite())


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


def noise_of(weight: Tensor) -> float:
    return noise(*squares(weight), weight.shape[1])


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_noise_is_that_of_rounding(stored: torch.dtype) -> None:
    for drawn in (random(50, 640), random(50, 640) ** 3, random(3, 640).exp(), random(2000, 700)):
        numbers, scale, _ = quantise(weight := drawn.to(stored))
        error = (weight - numbers * scale[:, None]).norm() / weight.norm()
        assert noise_of(weight) == pytest.approx(float(error), rel=0.2)
        assert ENGINE.squares(weight) == pytest.approx(squares(weight), rel=1e-5)
    assert noise_of(torch.zeros(3, 4)) == 0 == noise(*ENGINE.squares(torch.zeros(3, 4)), 4)


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
    assert (
        noise_of(weight) > NOISE > max(noise_of(t) for n, t in loaded.state.items() if is_linear(n))
    )
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
