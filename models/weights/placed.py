"""Weights by their canonical names, packed for the engine of a device.

The canonical names are those of our own modules' state dicts (transformer.py, gpt.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.torch.blocks import Biases, all_but_output
from decoding.models.torch.encoder import Encoder
from decoding.models.torch.gpt import GPT
from decoding.models.torch.transformer import Transformer
from decoding.models.weights import memory
from decoding.models.weights.checkpoint import check, identity, is_finite
from decoding.models.weights.panels import NOISE, fill_panels, noise, panel_shape, quantise

ALIGNMENT = 256  # bytes; of every tensor in a packed block
LINEAR = ("qkv", "q", "kv", "input", "taps", "out", "up", "down", "output")


@overload
def module(spec: ModelSpec, biases: Biases = ...) -> Transformer | GPT: ...
@overload
def module(spec: EncoderSpec, biases: Biases = ...) -> Encoder: ...
def module(
    spec: ModelSpec | EncoderSpec, biases: Biases = all_but_output
) -> Transformer | GPT | Encoder:
    """The torch module of a spec, with new weights. biases: which products and norms have one."""
    if isinstance(spec, EncoderSpec):
        return Encoder(spec, biases=biases)
    kind = GPT if spec.encoder is None else Transformer
    return kind(spec, biases=biases)


def shapes(
    spec: ModelSpec | EncoderSpec, biases: Biases = all_but_output
) -> dict[str, tuple[int, ...]]:
    """The canonical names of a model's weights, and their unpacked shapes; biases as above."""
    with torch.device("meta"):
        state = module(spec, biases).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


@dataclass(frozen=True)
class Place:
    """A tensor of the packed block."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def pack(
    state: Mapping[str, Tensor],
    spec: ModelSpec | EncoderSpec,
    device: torch.device = memory.CPU,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """What the engine of `device` is given: the names of `state`, copied into one block there.

    On a GPU tables and linear weights [N, K] are of the type `dtype`, which is float. On the CPU
    linear weights are (float32, bfloat16 or int8), in panels (panels.py), with `.scale` and `.sums`
    beside an int8 `.weight`; those that int8 is too coarse for are bfloat16 instead. Token tables
    are bfloat16 there unless `dtype` is float32, position tables float32. Norms, biases, rotary,
    position_bias and taps that are weights are float32 everywhere. What shares storage in `state`
    shares it here where it has one type; a token table then is the panels of the output's weight.

    Raises ValueError that names a missing, unexpected, mis-shaped or not finite tensor,
    torch.OutOfMemoryError where a GPU has no room.
    """
    expected = shapes(spec, lambda name: f"{name}.bias" in state)
    unexpected = [name for name in state if name not in expected]
    if unexpected:
        raise ValueError(f"this model has no weights named {', '.join(unexpected)}")
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"the weight {name} is missing")
        check(name, state[name], shape)
    types = {name: type_of(name, state[name], device, dtype) for name in expected}
    keys = {name: (*identity(state[name]), types[name]) for name in expected}
    holders: dict[object, str] = {}  # of equal keys one weight is stored, a linear one if any is
    for name, key in keys.items():
        if key not in holders or is_linear(name):
            holders[key] = name
    places: dict[str, Place] = {}
    for name in holders.values():
        places |= places_of(name, expected[name], types[name], device)
    blocks = carve(places, device)
    for name in holders.values():
        fill(blocks, name, state[name].detach(), device)
    packed = {}
    for name, key in keys.items():
        packed[name] = blocks[holders[key]]
        if types[name] == torch.int8:
            for own, held in zip(companions(name), companions(holders[key]), strict=True):
                packed[own] = blocks[held]
    return packed


def type_of(name: str, weight: Tensor, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What a weight of a model of the type `dtype` is stored in."""
    if (
        weight.ndim == 1
        or name.endswith((".position_bias", ".rotary", ".taps"))
        or (device.type == "cpu" and name.endswith(".positions"))
    ):
        return torch.float32
    if dtype == torch.int8 and (not is_linear(name) or noise(weight) > NOISE):
        return torch.bfloat16
    return dtype


def is_linear(name: str) -> bool:
    return name.endswith(tuple(f"{linear}.weight" for linear in LINEAR))


def in_panels(name: str, device: torch.device) -> bool:
    return device.type == "cpu" and is_linear(name)


def companions(name: str) -> tuple[str, str]:
    """What stands beside an int8 weight: its scale and its sums."""
    stem = name.removesuffix("weight")
    return f"{stem}scale", f"{stem}sums"


def places_of(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> dict[str, Place]:
    """What is stored for a weight."""
    if not in_panels(name, device):
        return {name: Place(shape, dtype)}
    places = {name: Place(panel_shape(shape[0], shape[1], dtype), dtype)}
    if dtype == torch.int8:
        scale, sums = companions(name)
        places[scale] = Place(shape[:1], torch.float32)
        places[sums] = Place(shape[:1], torch.int32)
    return places


def carve(places: Mapping[str, Place], device: torch.device) -> dict[str, Tensor]:
    """A tensor for each place, all in one block."""
    sizes = [math.prod(place.shape) * place.dtype.itemsize for place in places.values()]
    padded = [size + -size % ALIGNMENT for size in sizes]
    parts = torch.split(memory.empty(sum(padded), device), padded)
    return {
        name: part[:size].view(place.dtype).view(place.shape)
        for (name, place), part, size in zip(places.items(), parts, sizes, strict=True)
    }


def fill(blocks: Mapping[str, Tensor], name: str, weight: Tensor, device: torch.device) -> None:
    """Writes a weight to its places."""
    block = blocks[name]
    if block.dtype == torch.int8:
        weight, *others = quantise(weight)
        for companion, tensor in zip(companions(name), others, strict=True):
            blocks[companion].copy_(tensor)
    else:
        weight = converted(name, weight, block.dtype)
    if in_panels(name, device):
        fill_panels(block, weight)
    else:
        block.copy_(weight)


def converted(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Raises ValueError where a number is beyond what `dtype` can hold."""
    found = weight.to(dtype)
    if not is_finite(found):
        most, kind = torch.finfo(dtype).max, str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{name} holds {float(weight.abs().max()):.3g}, and {kind} ends at {most:.3g}"
            + (': pass dtype="bfloat16"' if dtype == torch.float16 else "")
        )
    return found
