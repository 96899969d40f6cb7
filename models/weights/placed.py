"""Weights by their canonical names, packed for the engine of a device.

shapes.py has the canonical names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.checkpoint import check
from decoding.models.weights.dtypes import DTYPES, Array, Stored, as_float32, name_of
from decoding.models.weights.lazy import LazyTensor, Weight, Weights, in_chunks
from decoding.models.weights.panels import NOISE, Packer, noise, panel_shape
from decoding.models.weights.shapes import shapes

ALIGNMENT = 256  # bytes; of every tensor in a packed block
MOST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}
LINEAR = ("qkv", "q", "kv", "input", "kernel", "out", "up", "down", "output")


@dataclass(frozen=True)
class Place:
    """A tensor of the packed block."""

    shape: tuple[int, ...]
    dtype: str


def pack(
    state: Mapping[str, Weight],
    spec: ModelSpec | EncoderSpec,
    packer: Packer,
    device: str = "cpu",
    dtype: str = "float32",
) -> dict[str, Stored]:
    """What the engine of `device`, "cpu" or "cuda", is given: the names of `state`, copied into one
    block there, as NumPy's arrays or as a GPU's. Of Weights one is read at a time.

    On a GPU tables and linear weights [N, K] are of the type `dtype`, which is float. On the CPU
    linear weights are (float32, bfloat16 or int8), in panels (panels.py), with `.scale` and `.sums`
    beside an int8 `.weight`; those that int8 is too coarse for are bfloat16 instead. Token tables
    are bfloat16 there unless `dtype` is float32, position tables float32. Norms, biases, rotary,
    position_bias and a convolution's kernel are float32 everywhere, but not the linear weight that
    makes a kernel. What shares storage in `state` shares it here where it has one type; a token
    table then is the panels of the output's weight.
    packer: what converts them, and gives the block.

    Raises ValueError that names a missing, unexpected, mis-shaped or not finite tensor, MemoryError
    where the device has no room.
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
    blocks = carve(places, packer)
    for name in holders.values():
        if in_panels(name, device):
            copy_linear(blocks, name, weights.lazy(name), packer)
        else:
            copy_rows(blocks[name], name, weights.lazy(name), packer)
    packed = {}
    for name, key in keys.items():
        packed[name] = blocks[holders[key]]
        if types[name] == "int8":
            for own, held in zip(companions(name), companions(holders[key]), strict=True):
                packed[own] = blocks[held]
    return packed


def type_of(name: str, weight: LazyTensor, device: str, dtype: str, packer: Packer) -> str:
    """What a weight of a model of the type `dtype` is stored in."""
    if (
        len(weight.shape) == 1
        or name.endswith((".position_bias", ".rotary", ".kernel"))
        or (device == "cpu" and name.endswith(".positions"))
    ):
        return "float32"
    if dtype == "int8":
        fine = is_linear(name) and lazy_noise(weight, packer) <= NOISE
        return "int8" if fine else "bfloat16"
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


def in_panels(name: str, device: str) -> bool:
    return device == "cpu" and is_linear(name)


def companions(name: str) -> tuple[str, str]:
    """What stands beside an int8 weight: its scale and its sums."""
    stem = name.removesuffix("weight")
    return f"{stem}scale", f"{stem}sums"


def places_of(name: str, shape: tuple[int, ...], dtype: str, device: str) -> dict[str, Place]:
    """What is stored for a weight."""
    if not in_panels(name, device):
        return {name: Place(shape, dtype)}
    places = {name: Place(panel_shape(shape[0], shape[1], dtype), dtype)}
    if dtype == "int8":
        scale, sums = companions(name)
        places[scale] = Place(shape[:1], "float32")
        places[sums] = Place(shape[:1], "int32")
    return places


def carve(places: Mapping[str, Place], packer: Packer) -> dict[str, Stored]:
    """An array for each place, all in one block."""
    sizes = [math.prod(place.shape) * DTYPES[place.dtype].itemsize for place in places.values()]
    ends = list(itertools.accumulate(size + -size % ALIGNMENT for size in sizes))
    block = packer.empty(ends[-1])
    return {
        name: viewed(block[begin : begin + size], place)
        for (name, place), begin, size in zip(places.items(), [0, *ends], sizes, strict=False)
    }


def viewed(part: Stored, place: Place) -> Stored:
    """part: the bytes of a place, uint8."""
    if isinstance(part, np.ndarray):
        return part.view(DTYPES[place.dtype]).reshape(place.shape)
    return part.view(place.dtype, place.shape)


def copy_linear(
    blocks: Mapping[str, Stored], name: str, weight: LazyTensor, packer: Packer
) -> None:
    """Writes a weight to its panels. Raises ValueError as copy_rows() does."""
    block, row = blocks[name], 0
    quantised = block.dtype == np.int8
    scale, sums = (blocks[each] for each in companions(name)) if quantised else (None, None)
    for part in weight.parts or (weight,):
        with part.open() as tensor:
            for rows in contiguous(tensor):
                if not packer.fill(block, rows, row, scale, sums):
                    refuse(name, weight, rows, name_of(block.dtype))
                row += len(rows)


def copy_rows(block: Stored, name: str, weight: LazyTensor, packer: Packer) -> None:
    """Writes a weight to its place, some rows after the other. Raises ValueError where a number is
    not finite, or beyond what its type can hold."""
    row = 0
    for part in weight.parts or (weight,):
        with part.open() as tensor:
            for rows in in_chunks(tensor):
                if not write(block[row : row + len(rows)], np.ascontiguousarray(rows), packer):
                    refuse(name, weight, rows, name_of(block.dtype))
                row += len(rows)


def write(to: Stored, rows: Array, packer: Packer) -> bool:
    """Converts rows to where they are to be. Returns whether all numbers are finite."""
    if isinstance(to, np.ndarray):
        return packer.convert(to, rows)
    made = np.empty(rows.shape, DTYPES[name_of(to.dtype)])
    finite = packer.convert(made, rows)
    to.copy_from(made)
    return finite


def contiguous(array: Array) -> Iterator[Array]:
    """The array, or copies of some of its rows after the other where it is transposed, say."""
    if array.flags.c_contiguous:
        yield array
    else:
        yield from map(np.ascontiguousarray, in_chunks(array))


def refuse(name: str, weight: LazyTensor, rows: Array, dtype: str) -> NoReturn:
    weight.check_finite()
    largest, most = float(np.abs(as_float32(rows)).max()), MOST[dtype]
    raise ValueError(
        f"{name} holds {largest:.3g}, and {dtype} ends at {most:.3g}"
        + (': pass dtype="bfloat16"' if dtype == "float16" else "")
    )
