"""Where each weight lies in the block that an engine is given, and in which type."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from decoding.models.weights.dtypes import DTYPES, QUANTISED, Stored
from decoding.models.weights.panels import Packer, panel_shape, quantised_stride

ALIGNMENT = 256  # bytes; of every tensor in a packed block
LINEAR = ("qkv", "q", "kv", "input", "kernel", "out", "up", "down", "output")


@dataclass(frozen=True)
class Place:
    """A tensor of the packed block."""

    shape: tuple[int, ...]
    dtype: str


class Blocks:
    """The places of all weights in one block, where equal ones share a place.

    tensors: by the names of the weights that places are named after, and of their companions.
    """

    def __init__(
        self,
        expected: Mapping[str, tuple[int, ...]],
        types: Mapping[str, str],
        keys: Mapping[str, object],
        device: str,
        packer: Packer,
    ) -> None:
        """keys: equal for the same weights in the same type."""
        self._keys = keys
        self._holders: dict[object, str] = {}  # a linear weight where any of them is one
        for name, key in keys.items():
            if key not in self._holders or is_linear(name):
                self._holders[key] = name
        places: dict[str, Place] = {}
        for name in self.held():
            places |= places_of(name, expected[name], types[name], device)
        self.tensors = carve(places, packer)

    def held(self) -> list[str]:
        """The weights to write."""
        return list(self._holders.values())

    def by_name(self) -> dict[str, Stored]:
        """The tensors of all weights, with what stands beside them."""
        found = {}
        for name, key in self._keys.items():
            held = self._holders[key]
            found[name] = self.tensors[held]
            for own, beside in zip(companions(name), companions(held), strict=True):
                if beside in self.tensors:
                    found[own] = self.tensors[beside]
        return found


def in_float32(name: str, shape: tuple[int, ...], device: str) -> bool:
    """Whether a weight is float32 whatever the type of the model."""
    return (
        len(shape) == 1
        or name.endswith((".position_bias", ".rotary", ".kernel"))
        or (device == "cpu" and name.endswith(".positions"))
    )


def is_linear(name: str) -> bool:
    return name.endswith(tuple(f"{linear}.weight" for linear in LINEAR))


def in_panels(name: str, device: str) -> bool:
    return device == "cpu" and is_linear(name)


def companions(name: str) -> tuple[str, str]:
    """What stands beside a quantised weight: its scale and, on the CPU, its sums."""
    stem = name.removesuffix("weight")
    return f"{stem}scale", f"{stem}sums"


def places_of(name: str, shape: tuple[int, ...], dtype: str, device: str) -> dict[str, Place]:
    """What is stored for a weight."""
    places = {name: Place(shape, dtype)}
    if in_panels(name, device):
        places[name] = Place(panel_shape(shape[0], shape[1], dtype), dtype)
    if dtype in QUANTISED:
        scale, sums = companions(name)
        places[scale] = Place(shape[:1], "float32")
        if device == "cpu":
            places[sums] = Place(shape[:1], "int32")
        else:
            places[name] = Place((shape[0], quantised_stride(shape[1])), dtype)
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
