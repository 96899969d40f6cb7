"""Weights by their canonical names, packed for the engine of a device.

shapes.py has the canonical names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.checkpoint import check
from decoding.models.weights.dtypes import (
    DTYPES,
    QUANTISED,
    Array,
    Stored,
    as_array,
    as_float32,
    name_of,
    without_gaps,
)
from decoding.models.weights.lazy import (
    LazyTensor,
    Quantised,
    Weight,
    Weights,
    identity,
    in_chunks,
    is_finite,
    pieces,
)
from decoding.models.weights.panels import (
    NOISE,
    Packer,
    int8_panels,
    noise,
    panel_shape,
    rows_of_panels,
)
from decoding.models.weights.places import Blocks, companions, in_float32, in_panels, is_linear
from decoding.models.weights.shapes import shapes

# What an int8 model keeps of how its weights were stored.
KEPT = {"cpu": ("int8",), "cuda": QUANTISED}
MOST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}


def pack(
    state: Mapping[str, Weight],
    spec: ModelSpec | EncoderSpec,
    packer: Packer,
    device: str = "cpu",
    dtype: str = "float32",
    half: str = "bfloat16",
) -> dict[str, Stored]:
    """What the engine of `device`, "cpu" or "cuda", is given: the names of `state`, copied into one
    block there, as NumPy's arrays or as a GPU's. Of Weights one is read at a time.

    On a GPU tables and linear weights [N, K] are of the type `dtype`. On the CPU linear weights are
    (float32, bfloat16 or int8), in panels (panels.py). An int8 `.weight` has its `.scale` beside
    it, and on the CPU its `.sums`; on a GPU it lies in rows of quantised_stride(K) bytes. Linear
    weights that int8 is too coarse for are of the type `half` instead, and so are an int8 model's
    tables: on the CPU bfloat16. Those that were stored in int8, or in e4m3 for a GPU, keep their
    type, their numbers and scales. Token tables
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
    types = {
        name: "float32" if in_float32(name, shape, device) else dtype
        for name, shape in expected.items()
    }
    if dtype == "int8":
        coarse = [name for name in expected if types[name] == "int8" and not is_linear(name)]
        types |= dict.fromkeys(coarse, half)
        for name in expected:
            if types[name] == "int8":
                types[name] = type_in_8_bits(weights.lazy(name), packer, device, half)
    keys = {name: (weights.lazy(name).key, types[name]) for name in expected}
    blocks = Blocks(expected, types, keys, device, packer)
    for name in blocks.held():
        stored = weights.lazy(name).quantised
        if stored is not None and stored.numbers.dtype == types[name]:
            copy_quantised(blocks.tensors, name, stored, packer)
        elif in_panels(name, device):
            copy_linear(blocks.tensors, name, weights.lazy(name), packer)
        elif types[name] == "int8":
            copy_int8_rows(blocks.tensors, name, weights.lazy(name), packer)
        else:
            copy_rows(blocks.tensors[name], name, weights.lazy(name), packer)
    return blocks.by_name()


def repack(
    packed: Mapping[str, Array], spec: ModelSpec | EncoderSpec, packer: Packer, half: str
) -> dict[str, Stored]:
    """What the engine of a GPU is given, of what pack() has made for the CPU in int8.

    half: the type of all matrices there that are not int8. Raises ValueError where one holds a
    number that this type cannot hold, MemoryError where the device has no room.
    """
    expected = shapes(spec, lambda name: f"{name}.bias" in packed)
    types = {
        name: "int8"
        if packed[name].dtype == np.int8
        else ("float32" if in_float32(name, shape, "cuda") else half)
        for name, shape in expected.items()
    }
    keys = {name: (identity(packed[name]), types[name]) for name in expected}
    blocks = Blocks(expected, types, keys, "cuda", packer)
    for name in blocks.held():
        block, given, shape = blocks.tensors[name], packed[name], expected[name]
        if types[name] == "int8":
            interleave(block, given, shape[1], packer)
            scale = companions(name)[0]
            write(blocks.tensors[scale], packed[scale], packer)
            continue
        rows = rows_of_panels(given, *shape) if given.ndim > len(shape) else given
        if not write(block, without_gaps(rows), packer):
            refuse(name, Weights({name: rows}).lazy(name), rows, half)
    return blocks.by_name()


def type_in_8_bits(weight: LazyTensor, packer: Packer, device: str, half: str) -> str:
    """That of a linear weight in an int8 model: `half` where int8 is too coarse for it."""
    if weight.quantised is not None and weight.quantised.numbers.dtype in KEPT[device]:
        return weight.quantised.numbers.dtype
    steps = length = 0.0
    for rows in pieces(weight):
        more = packer.squares(rows)
        steps, length = steps + more[0], length + more[1]
    return half if noise(steps, length, weight.shape[1]) > NOISE else "int8"


def copy_quantised(
    blocks: Mapping[str, Stored], name: str, stored: Quantised, packer: Packer
) -> None:
    """Writes a weight with the numbers and the scales that it was stored with. Raises ValueError as
    copy_rows() does."""
    row, scales = 0, stored.scale.read()
    with np.errstate(over="ignore"):
        largest = scales * np.float32(QUANTISED[stored.numbers.dtype])
    if not is_finite(largest):
        refuse(name, stored.scale, largest, "float32")
    numbers = np.empty(stored.numbers.shape, np.int8)  # or the bits of others
    for part in stored.numbers.parts or (stored.numbers,):
        part.check_finite()
        with part.open() as array:
            end = row + len(array)
            numbers[row:end] = array.view(np.int8)
            row = end
    block, panels, (scale, sums) = blocks[name], int8_panels(numbers), companions(name)
    write(blocks[scale], scales, packer)
    if sums in blocks:  # on the CPU
        as_array(block)[:] = panels
        as_array(blocks[sums])[:] = numbers.sum(axis=1, dtype=np.int32)
    else:
        interleave(block, panels, numbers.shape[1], packer)


def copy_linear(
    blocks: Mapping[str, Stored], name: str, weight: LazyTensor, packer: Packer
) -> None:
    """Writes a weight to its panels. Raises ValueError as copy_rows() does."""
    block, row = blocks[name], 0
    quantised = block.dtype == np.int8
    scale, sums = (blocks[each] for each in companions(name)) if quantised else (None, None)
    for rows in pieces(weight):
        if not packer.fill(block, rows, row, scale, sums):
            refuse(name, weight, rows, name_of(block.dtype))
        row += len(rows)


def copy_int8_rows(
    blocks: Mapping[str, Stored], name: str, weight: LazyTensor, packer: Packer
) -> None:
    """Quantises a weight into the rows of a GPU. Raises ValueError as copy_rows() does."""
    row, scales = 0, np.empty(weight.shape[0], np.float32)
    for piece in pieces(weight):
        for rows in in_chunks(piece):
            count, inputs = rows.shape
            panels = np.empty(panel_shape(count, inputs, "int8"), np.int8)
            sums = np.empty(count, np.int32)
            if not packer.fill(panels, rows, 0, scales[row : row + count], sums):
                refuse(name, weight, rows, "float32")
            interleave(blocks[name][row : row + count], panels, inputs, packer)
            row += count
    write(blocks[companions(name)[0]], scales, packer)


def interleave(to: Stored, panels: Array, inputs: int, packer: Packer) -> None:
    """Writes the outputs of int8 panels, or of such of other bytes, as a GPU's rows."""
    rows = to.view(np.int8) if isinstance(to, np.ndarray) else np.empty(to.shape, np.int8)
    packer.interleave(rows, panels, inputs)
    if not isinstance(to, np.ndarray):
        to.copy_from(rows)


def copy_rows(block: Stored, name: str, weight: LazyTensor, packer: Packer) -> None:
    """Writes a weight to its place, some rows after the other. Raises ValueError where a number is
    not finite, or beyond what its type can hold."""
    row = 0
    for piece in pieces(weight):
        for rows in in_chunks(piece):
            if not write(block[row : row + len(rows)], rows, packer):
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


def refuse(name: str, weight: LazyTensor, rows: Array, dtype: str) -> NoReturn:
    weight.check_finite()
    largest, most = float(np.abs(as_float32(rows)).max()), MOST[dtype]
    raise ValueError(
        f"{name} holds {largest:.3g}, and {dtype} ends at {most:.3g}"
        + (': pass dtype="bfloat16", or kv_cache_dtype="bfloat16" where dtype is "int8"')
        * (dtype == "float16")
    )
