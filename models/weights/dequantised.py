"""Linear weights that checkpoints store in 8 bits, as functions of what is stored.

A weight [N, K] is float8 or int8 numbers, and each block of them has a scale:

    W[n, k] = (numbers[n, k] - zero_point[n / rows, k / columns]) * scale[n / rows, k / columns]

Symmetric ones have no zero points. The scales of activations, which such files hold too, are left
out: activations are computed in the engine's types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from decoding.models.weights.dtypes import Array, is_float
from decoding.models.weights.lazy import LazyTensor, Weight, as_lazy, computed
from decoding.models.weights.quantization_config import Block, Scheme

NUMBERS = ("float8_e4m3fn", "float8_e5m2", "int8")
ZERO_POINT = "weight_zero_point"
# Of activations, and of keys and values; the last words of the tensors' names.
OF_ACTIVATIONS = {
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale"),
    *("q_scale", "k_scale", "v_scale", "q_zero_point", "k_zero_point", "v_zero_point"),
}


def dequantised(state: Mapping[str, Weight], scheme: Scheme) -> dict[str, LazyTensor]:
    """The checkpoint with plain weights. Raises ValueError that names a scale that is missing or of
    another shape or type."""
    tensors = {name: as_lazy(weight, name) for name, weight in state.items()}
    stems = [
        name.removesuffix("weight")
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.dtype in NUMBERS
    ]
    found = {f"{stem}weight": weight(tensors, stem, scheme) for stem in stems}
    used = {f"{stem}{kind}" for stem in stems for kind in (*scheme.scales, ZERO_POINT)}
    for name, tensor in tensors.items():
        if name not in found and name not in used and last_word(name) not in OF_ACTIVATIONS:
            found[name] = tensor
    return found


def last_word(name: str) -> str:
    return name.rpartition(".")[2]


def weight(tensors: Mapping[str, LazyTensor], stem: str, scheme: Scheme) -> LazyTensor:
    """float32 [N, K], of the numbers in `stem`weight."""
    numbers = tensors[f"{stem}weight"]
    if len(numbers.shape) != 2:
        raise ValueError(f"{stem}weight must have 2 axes, got the shape {list(numbers.shape)}")
    outputs, inputs = numbers.shape
    scale, (rows, columns) = scale_of(tensors, stem, scheme)
    zero_points = zero_points_of(tensors, stem, scale)

    def of_rows(blocks: Array) -> Array:
        """[N, C] of what blocks have, C of them in a row."""
        by_row = blocks.reshape(-1, -(-inputs // columns))
        return np.repeat(by_row, rows, axis=0)[:outputs]

    def values(stored: Array, scale: Array, *zero_points: Array) -> Array:
        # In place: of numbers in 8 bits the float32 array is a new one.
        for zero_point in zero_points:
            by_block(np.subtract, stored, of_rows(zero_point), columns)
        return by_block(np.multiply, stored, of_rows(scale), columns)

    found = computed(numbers.shape, values, numbers, scale, *zero_points)
    if numbers.dtype != "int8" or columns < inputs or zero_points:
        return found
    of_row = computed((outputs,), lambda scale: of_rows(scale)[:, 0], scale)
    return replace(found, scale=of_row)


def scale_of(
    tensors: Mapping[str, LazyTensor], stem: str, scheme: Scheme
) -> tuple[LazyTensor, tuple[int, int]]:
    """The scale of a weight, and the size of the blocks that have one number of it each."""
    held = [stem + name for name in scheme.scales if stem + name in tensors]
    if not held:
        raise ValueError(
            f"the checkpoint lacks the tensor {stem}{scheme.scales[0]}, the scale of {stem}weight"
        )
    name, scale = held[0], tensors[held[0]]
    if not is_float(scale.dtype):
        raise ValueError(f"{name} must hold floating-point numbers, got {scale.dtype}")
    return scale, block_in(name, scale, tensors[f"{stem}weight"].shape, scheme.blocks)


def zero_points_of(
    tensors: Mapping[str, LazyTensor], stem: str, scale: LazyTensor
) -> tuple[LazyTensor, ...]:
    """One, or none of a symmetric weight."""
    name = stem + ZERO_POINT
    if name not in tensors:
        return ()
    if tensors[name].shape != scale.shape:
        raise ValueError(
            f"{name} must have the shape {list(scale.shape)} of the scale, got "
            f"{list(tensors[name].shape)}"
        )
    return (tensors[name],)


def by_block(function: np.ufunc, numbers: Array, blocks: Array, columns: int) -> Array:
    """function of numbers [N, K] and what their blocks have [N, C], in place."""
    for i, block in enumerate(blocks.T):
        part = numbers[:, i * columns : (i + 1) * columns]
        function(part, block[:, None], out=part)
    return numbers


def block_in(
    name: str, scale: LazyTensor, shape: tuple[int, ...], blocks: tuple[Block, ...]
) -> tuple[int, int]:
    """The size of the blocks that a weight [N, K] with this scale has. Raises ValueError where the
    scale is of none of them, or of several."""
    sizes = dict.fromkeys(block.within(shape) for block in blocks)
    shapes = {
        size: tuple(-(-n // part) for n, part in zip(shape, size, strict=True)) for size in sizes
    }
    given = significant(scale.shape)
    fitting = [size for size in sizes if significant(shapes[size]) == given]
    if len(fitting) == 1:
        return fitting[0]
    raise ValueError(
        f"{name} must have the shape {' or '.join(str(list(each)) for each in shapes.values())} "
        f"for a weight {list(shape)}, got {list(scale.shape)}"
        + ", which fits several config_groups"
        * (len(fitting) > 1)
    )


def significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without ones at its end: published files store [N] or [N, 1], and one scale as [], [1] or
    [1, 1]."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape
