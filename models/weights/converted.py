"""Converted models: the packed weights of the CPU in a file that processes map into their memory.

Instead of a checkpoint's weights a converted directory holds `decoding.bin`, the block that
the engine reads, and `decoding.json`, its index.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from decoding.models.spec import (
    ConvolutionSpec,
    EncoderSpec,
    ModelSpec,
    RotarySpec,
    StackSpec,
)
from decoding.models.weights.memory import mapped
from decoding.models.weights.placed import ALIGNMENT

INDEX, BLOCK = "decoding.json", "decoding.bin"
LAYOUT = 2  # raised with every change in the meaning or the place of packed numbers


@dataclass(frozen=True)
class ConvertedWeights:
    """The result of `weights.pack` for the CPU in the type `dtype`."""

    spec: ModelSpec | EncoderSpec
    dtype: torch.dtype
    tensors: dict[str, Tensor]


def is_packed(directory: Path) -> bool:
    return (directory / INDEX).is_file()


def save(packed: ConvertedWeights, directory: Path) -> None:
    """Writes block and index. Tensors that are one in memory are one there.

    Files of these names are replaced, never written over: a process may have them mapped.
    """
    offsets: dict[int, int] = {}  # by address
    entries: dict[str, Any] = {}
    size = total = 0
    with replacing(directory / BLOCK) as file:
        for name, tensor in packed.tensors.items():
            if tensor.data_ptr() not in offsets:
                offsets[tensor.data_ptr()] = size
                numbers = tensor.flatten().view(torch.uint8)
                padded = torch.nn.functional.pad(numbers, (0, -len(numbers) % ALIGNMENT))
                file.write(padded.numpy().data)
                size += len(padded)
                total += checksum(padded)
            entries[name] = {
                "dtype": name_of(tensor.dtype),
                "shape": list(tensor.shape),
                "offset": offsets[tensor.data_ptr()],
            }
    index = {
        "layout": LAYOUT,
        "dtype": name_of(packed.dtype),
        "bytes": size,
        "checksum": total % 2**64,
        "spec": asdict(packed.spec),
        "tensors": entries,
    }
    with replacing(directory / INDEX) as file:
        file.write(json.dumps(index, indent=1).encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is complete."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(directory: Path) -> ConvertedWeights:
    """Maps a converted model; its pages are those of all processes that map it.

    Every page is read once, for the checksum. Raises ValueError where the files are of another
    layout, damaged, or not of each other.
    """
    try:
        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        if index["layout"] != LAYOUT:
            raise ValueError(f"its layout is {index['layout']}, this version reads {LAYOUT}")
        block = mapped(directory / BLOCK)
        if len(block) != index["bytes"]:
            raise ValueError(f"{BLOCK} has {len(block)} bytes, not {index['bytes']}")
        if checksum(block) != index["checksum"]:
            raise ValueError(f"the checksum of {BLOCK} is another one")
        return ConvertedWeights(
            spec=spec_of(index["spec"]),
            dtype=getattr(torch, index["dtype"]),
            tensors={name: tensor_of(entry, block) for name, entry in index["tensors"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as error:
        raise ValueError(
            f"{directory} is no converted model that can be read ({error!r}): convert the "
            "checkpoint again, with `decoding convert`"
        ) from error


def checksum(block: Tensor) -> int:
    """The sum of its 64-bit words, modulo 2^64. block: uint8 [a multiple of 8]."""
    return int(block.view(torch.int64).sum()) % 2**64


def tensor_of(entry: Mapping[str, Any], block: Tensor) -> Tensor:
    dtype, shape, offset = getattr(torch, entry["dtype"]), entry["shape"], entry["offset"]
    size = math.prod(shape) * dtype.itemsize
    return block[offset : offset + size].view(dtype).view(shape)


def spec_of(fields: Mapping[str, Any]) -> ModelSpec | EncoderSpec:
    stacks = {name: stack_of(fields[name]) for name in ("encoder", "decoder") if fields.get(name)}
    if "decoder" not in fields:
        return EncoderSpec(**{**fields, **stacks})
    return ModelSpec(**{**fields, **stacks})


def stack_of(fields: Mapping[str, Any]) -> StackSpec:
    made: dict[str, Any] = {
        name: tuple(value) for name, value in fields.items() if isinstance(value, list)
    }
    if fields["rotary"] is not None:
        made["rotary"] = RotarySpec(**fields["rotary"])
    if fields["convolution"] is not None:
        taps = tuple(fields["convolution"]["taps"])
        made["convolution"] = ConvolutionSpec(**{**fields["convolution"], "taps": taps})
    return StackSpec(**{**fields, **made})


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
