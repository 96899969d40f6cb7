"""Weights by their canonical names, packed for the engine of a device.

shapes.py has the canonical names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.checkpoint import check
from decoding.models.weights.lazy import LazyTensor, Weights, in_chunks
from decoding.models.weights.memory import empty
from decoding.models.weights.panels import NOISE, Packer, noise, panel_shape
from decoding.models.weights.shapes import shapes

CPU = torch.device("cpu")
ALIGNMENT = 256  # bytes; of every tensor in a packed block
LINEAR = ("qkv", "q", "kv", "input", "kernel", "out", "up", "down", "output")


@dataclass(frozen=True)
class Place:
    """A tensor of the packed block."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def pack(
    state: Mapping[str, Tensor],
    spec: ModelSpec | EncoderSpec,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    packer: Packer = Packer(),  # noqa: B008
) -> dict[str, Tensor]:
    """What the engine of `device` is given: the names of `state`, copied into one block there. Of
    Weights one is read at a time.

    On a GPU tables and linear weights [N, K] are of the type `dtype`, which is float. On the CPU
    linear weights are (float32, bfloat16 or int8), in panels (panels.py), with `.scale` and `.sums`
    beside an int8 `.weight`; those that int8 is too coarse for are bfloat16 instead. Token tables
    are bfloat16 there unless `dtype` is float32, position tables float32. Norms, biases, rotary,
    position_bias and a convolution's kernel are float32 everywhere, but not the linear weight that
    makes a kernel. What shares storage in `state` shares it here where it has one type; a token
    table then is the panels of the output's weight.
    packer: what writes weights; the engine's own is faster, and for the CPU alone.

    Raises ValueError that names a missing, unexpected, mis-shaped or not finite tensor,
    torch.OutOfMemoryError where a GPU has no room.
    """
    weights = state if isinstance(state, Weights) else Weights(state)
    expected = shapes(spec, lambda name: f"{name}.bias" in weights)
    unexpected = [name for name in weights if name not in expected]
    if unexpected:
        raise ValueError(f"this model has no weights named {', '.join(unexpected)}")
    for name, shape in expected.items():
        if name not in weights:
            raise ValueError(f"the weight {name} is missing")
        check(name, weights.lazy(name), shape)
    types = {name: type_of(name, weights.lazy(name), device, dtype, packer) for name in expected}
    keys = {name: (weights.lazy(name).key, types[name]) for name in expected}
    holders: dict[object, str] = {}  # of equal keys one weight is stored, a linear one if any is
    for name, key in keys.items():
        if key not in holders or is_linear(name):
            holders[key] = name
    places: dict[str, Place] = {}
    for name in holders.values():
        places |= places_of(name, expected[name], types[name], device)
    blocks = carve(places, device)
    for name in holders.values():
        if in_panels(name, device):
            copy_linear(blocks, name, weights.lazy(name), packer)
        else:
            copy_rows(blocks[name], name, weights.lazy(name), packer)
    packed = {}
    for name, key in keys.items():
        packed[name] = blocks[holders[key]]
        if types[name] == torch.int8:
            for own, held in zip(companions(name), companions(holders[key]), strict=True):
                packed[own] = blocks[held]
    return packed


def type_of(
    name: str, weight: LazyTensor, device: torch.device, dtype: torch.dtype, packer: Packer
) -> torch.dtype:
    """What a weight of a model of the type `dtype` is stored in."""
    if (
        len(weight.shape) == 1
        or name.endswith((".position_bias", ".rotary", ".kernel"))
        or (device.type == "cpu" and name.endswith(".positions"))
    ):
        return torch.float32
    if dtype == torch.int8:
        fine = is_linear(name) and lazy_noise(weight, packer) <= NOISE
        return torch.int8 if fine else torch.bfloat16
    return dtype


def lazy_noise(weight: LazyTensor, packer: Packer) -> float:
    steps = length = 0.0
    for part in weight.parts or (weight,):
        with part.open() as tensor:
            for rows in contiguous(tensor):
                more = packer.squares(rows)
                steps, length = steps + more[0], length + more[1]
    return noise(steps, length, weight.shape[1])


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
    parts = torch.split(empty(sum(padded), device), padded)
    return {
        name: part[:size].view(place.dtype).view(place.shape)
        for (name, place), part, size in zip(places.items(), parts, sizes, strict=True)
    }


def copy_linear(
    blocks: Mapping[str, Tensor], name: str, weight: LazyTensor, packer: Packer
) -> None:
    """Writes a weight to its panels. Raises ValueError as copy_rows() does."""
    block, row = blocks[name], 0
    quantised = block.dtype == torch.int8
    scale, sums = (blocks[each] for each in companions(name)) if quantised else (None, None)
    for part in weight.parts or (weight,):
        with part.open() as tensor:
            for rows in contiguous(tensor):
                if not packer.fill(block, rows, row, scale, sums):
                    refuse(name, weight, rows, block.dtype)
                row += len(rows)


def copy_rows(block: Tensor, name: str, weight: LazyTensor, packer: Packer) -> None:
    """Writes a weight to its place, some rows after the other. Raises ValueError where a number is
    not finite, or beyond what its type can hold."""
    row = 0
    for part in weight.parts or (weight,):
        with part.open() as tensor:
            for rows in in_chunks(tensor):
                if not packer.convert(block[row : row + len(rows)], rows.contiguous()):
                    refuse(name, weight, rows, block.dtype)
                row += len(rows)


def contiguous(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor, or copies of some of its rows after the other where it is transposed, say."""
    if tensor.is_contiguous():
        yield tensor
    else:
        yield from (rows.contiguous() for rows in in_chunks(tensor))


def refuse(name: str, weight: LazyTensor, rows: Tensor, dtype: torch.dtype) -> NoReturn:
    weight.check_finite()
    raise ValueError(beyond(name, rows, dtype))


def beyond(name: str, weight: Tensor, dtype: torch.dtype) -> str:
    most, kind = torch.finfo(dtype).max, str(dtype).removeprefix("torch.")
    return f"{name} holds {float(weight.abs().max()):.3g}, and {kind} ends at {most:.3g}" + (
        ': pass dtype="bfloat16"' if dtype == torch.float16 else ""
    )
