"""Converted models: the packed weights of the CPU in a file that processes map into their memory.
Those in int8 are read for a GPU too, which takes them in another layout.

Instead of a checkpoint's weights a converted directory holds `decoding.bin`, the block that
the engine reads, and `decoding.json`, its index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoding.models.files import VOCABULARY, Directory, ModelFileError, read_object, short
from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.dtypes import DTYPES, EXACT, Array, name_of
from decoding.models.weights.lazy import identity
from decoding.models.weights.memory import address, mapped
from decoding.models.weights.places import ALIGNMENT, Place, places_of
from decoding.models.weights.shapes import shapes
from decoding.models.weights.stored_spec import spec_of, table

INDEX, BLOCK = "decoding.json", "decoding.bin"
LAYOUT = 2  # raised with every change in the meaning or the place of packed numbers


@dataclass(frozen=True)
class ConvertedWeights:
    """The result of `weights.pack` for the CPU in the type `dtype`."""

    spec: ModelSpec | EncoderSpec
    dtype: str
    tensors: Mapping[str, Array]


def is_packed(directory: Directory) -> bool:
    return directory.find(INDEX) is not None


def save(packed: ConvertedWeights, directory: Path) -> None:
    """Writes block and index. Tensors that are one in memory are one there."""
    offsets: dict[int, int] = {}  # by address
    entries: dict[str, Any] = {}
    size = total = 0
    with (directory / BLOCK).open("xb") as file:
        for name, tensor in packed.tensors.items():
            place = address(tensor)
            if place not in offsets:
                offsets[place] = size
                numbers = tensor.reshape(-1).view(np.uint8)
                padded = np.pad(numbers, (0, -len(numbers) % ALIGNMENT))
                file.write(padded.data)
                size += len(padded)
                total += checksum(padded)
            entries[name] = {
                "dtype": name_of(tensor.dtype),
                "shape": list(tensor.shape),
                "offset": offsets[place],
            }
    index = {
        "layout": LAYOUT,
        "dtype": packed.dtype,
        "bytes": size,
        "checksum": total % 2**64,
        "spec": asdict(packed.spec),
        "tensors": entries,
    }
    (directory / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def load(directory: Directory) -> ConvertedWeights:
    """Maps a converted model; its pages are those of all processes that map it.

    Every page is read once, for the checksum. Raises ModelFileError where the files are missing, of
    another layout, damaged, or not of each other.
    """
    try:
        return read(directory)
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        raise ModelFileError(
            f"{directory.path} is no converted model that can be read, by its {INDEX} "
            f"({short(error)}): convert the checkpoint again, with `decoding convert`"
        ) from error


def read(directory: Directory) -> ConvertedWeights:
    """Raises any of several errors, and ModelFileError without the directory's name."""
    index = read_object(directory.required(INDEX, "it lists the weights"), VOCABULARY)
    layout, size, total = (index.get(name) for name in ("layout", "bytes", "checksum"))
    if layout != LAYOUT:
        raise ModelFileError(f"its layout is {short(layout)}, this version reads {LAYOUT}")
    block = mapped(directory.required(BLOCK, "it holds the weights"))
    if len(block) != size:
        raise ModelFileError(f"{BLOCK} has {len(block)} bytes, not {short(size)}")
    if len(block) % ALIGNMENT or checksum(block) != total:
        raise ModelFileError(f"the checksum of {BLOCK} is another one")
    spec = spec_of(index.get("spec"))
    found = {name: tensor_of(name, entry, block) for name, entry in table(index, "tensors").items()}
    check_tensors(spec, found)
    return ConvertedWeights(spec=spec, dtype=dtype_of(index), tensors=found)


def check_tensors(spec: ModelSpec | EncoderSpec, tensors: Mapping[str, Array]) -> None:
    """Raises ModelFileError where the tensors are not those of the spec."""
    layers = [stack.layers for stack in (spec.encoder, getattr(spec, "decoder", None)) if stack]
    if sum(layers) > len(tensors):
        raise ModelFileError(f"{sum(layers)} layers cannot be of {len(tensors)} tensors")
    places: dict[str, Place] = {}
    # Some families have no biases; every pooler has one.
    expected = shapes(spec, lambda name: name == "pooler" or f"{name}.bias" in tensors)
    for name, shape in expected.items():
        if name not in tensors:
            raise ModelFileError(f"the tensor {name} is missing")
        # A token table may be the panels of the output's weight.
        tied = name.endswith(".tokens") and is_same(tensors[name], tensors.get("output.weight"))
        if tied and shape == expected["output.weight"]:
            continue
        places |= places_of(name, shape, name_of(tensors[name].dtype), "cpu")
    unknown = tensors.keys() - expected.keys() - places.keys()
    if unknown:
        raise ModelFileError(f"this model has no tensors named {short(unknown)}")
    for name, place in places.items():
        tensor = tensors.get(name)
        if tensor is None or place != Place(tensor.shape, name_of(tensor.dtype)):
            raise ModelFileError(f"{name} must be {place.dtype} {list(place.shape)}")


def is_same(tensor: Array, other: Array | None) -> bool:
    return other is not None and identity(tensor) == identity(other)


def checksum(block: Array) -> int:
    """The sum of its 64-bit words, modulo 2^64. block: uint8 [a multiple of 8]."""
    return int(block.view(np.uint64).sum())


def tensor_of(name: str, entry: object, block: Array) -> Array:
    """A part of the block. Raises ModelFileError where it has no such part."""
    if not isinstance(entry, dict):
        raise ModelFileError(f"{name} must have a table, got {short(entry)}")
    dtype, shape = dtype_of(entry), entry.get("shape")
    offset: Any = entry.get("offset")
    if not isinstance(shape, list) or not all(map(is_count, (*shape, offset))):
        raise ModelFileError(f"{name} has the shape {short(shape)} and the offset {short(offset)}")
    size = math.prod(shape) * DTYPES[dtype].itemsize
    if offset % ALIGNMENT or offset + size > len(block):
        raise ModelFileError(f"{name} lies outside of {BLOCK}")
    return block[offset : offset + size].view(DTYPES[dtype]).reshape(shape)


def is_count(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 48


def dtype_of(entry: Mapping[str, Any]) -> str:
    name, dtypes = entry.get("dtype"), ("int32", "int8", *EXACT)
    if not isinstance(name, str) or name not in dtypes:
        raise ModelFileError(f"dtype must be one of {', '.join(dtypes)}, not {short(name)}")
    return name
