"""Linear weights that checkpoints store in 8 bits, as functions of what is stored.

A weight [N, K] is float8 or int8 numbers, and each block of them has a scale:

    W[n, k] = (numbers[n, k] - zero_point[n / rows, k / columns]) * scale[n / rows, k / columns]

Symmetric ones have no zero points. The scales of activations, which such files hold too, are left
out: activations are computed in the engine's types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from decoding.models.weights.dtypes import QUANTISED, Array, is_float
from decoding.models.weights.lazy import (
    LazyTensor,
    Quantised,
    Weight,
    as_lazy,
    computed,
    moved,
    part,
)
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
    # Not `weight`, which Python 3.12 would take below for a variable of this function (PEP 709).
    tensors = {name: as_lazy(stored, name) for name, stored in state.items()}
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


@dataclass(frozen=True)
class Blocks:
    """A weight [N, K] as it is stored, or a part of one.

    scale, zero_points: [R, C], one for each block; none of the latter where it is symmetric. size:
    rows and columns of a block. first: where in the first block the part begins.
    """

    numbers: LazyTensor
    scale: LazyTensor
    zero_points: tuple[LazyTensor, ...]
    size: tuple[int, int]
    first: tuple[int, int] = (0, 0)

    def dequantised(self) -> LazyTensor:
        """float32 [N, K]."""
        inputs = self.numbers, self.scale, *self.zero_points
        found = computed(self.numbers.shape, self._values, *inputs)
        found = replace(found, cut=lambda axis, some: self.part(axis, some).dequantised())
        if self.numbers.dtype not in QUANTISED or self.scale.shape[1] > 1 or self.zero_points:
            return found
        shape = self.numbers.shape[:1]
        scale = computed(shape, lambda scale: self._of_rows(scale)[:, 0], self.scale)
        return replace(found, quantised=Quantised(self.numbers, scale))

    def part(self, axis: int, some: range) -> Blocks:
        """Some of its rows or columns."""
        size, before = self.size[axis], self.first[axis]
        blocks = range((some.start + before) // size, -(-(some.stop + before) // size))
        begin = (some.start + before) % size
        return Blocks(
            part(self.numbers, axis, some),
            part(self.scale, axis, blocks),
            tuple(part(each, axis, blocks) for each in self.zero_points),
            self.size,
            (begin, self.first[1]) if axis == 0 else (self.first[0], begin),
        )

    def _of_rows(self, blocks: Array) -> Array:
        """[N, C] of what blocks [R, C] have."""
        begin = self.first[0]
        rows: Array = np.repeat(blocks, self.size[0], axis=0)
        return rows[begin : begin + self.numbers.shape[0]]

    def _values(self, stored: Array, scale: Array, *zero_points: Array) -> Array:
        # In place: of numbers in 8 bits the float32 array is a new one.
        for zero_point in zero_points:
            self._by_block(np.subtract, stored, zero_point)
        self._by_block(np.multiply, stored, scale)
        return stored

    def _by_block(self, function: np.ufunc, numbers: Array, blocks: Array) -> None:
        """function of numbers [N, K] and what their blocks have, in place."""
        columns, before = self.size[1], self.first[1]
        for i, block in enumerate(self._of_rows(blocks).T):
            some = numbers[:, max(i * columns - before, 0) : (i + 1) * columns - before]
            function(some, block[:, None], out=some)


def weight(tensors: Mapping[str, LazyTensor], stem: str, scheme: Scheme) -> LazyTensor:
    """float32 [N, K], of the numbers in `stem`weight."""
    numbers = tensors[f"{stem}weight"]
    if len(numbers.shape) != 2:
        raise ValueError(f"{stem}weight must have 2 axes, got the shape {list(numbers.shape)}")
    scale, size = scale_of(tensors, stem, scheme)
    zero_points = zero_points_of(tensors, stem, scale)
    grid = blocks_in(numbers.shape, size)
    scale, *rest = (
        moved(grid, lambda stored: stored.reshape(grid), each) for each in (scale, *zero_points)
    )
    return Blocks(numbers, scale, tuple(rest), size).dequantised()


def scale_of(
    tensors: Mapping[str, LazyTensor], stem: str, scheme: Scheme
) -> tuple[LazyTensor, tuple[int, int]]:
    """The scale of a weight, and the size of the blocks that have one number of it each."""
    held = [stem + name for name in scheme.scales if stem + name in tensors]
    if not held:
        raise ValueError(
            f"the checkpoint lacks the tensor {stem}{scheme.scales[0]}, the scale of {stem}weight"
        )
    if len(held) > 1:
        raise ValueError(f"{stem}weight has several scales: {', '.join(held)}")
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


def block_in(
    name: str, scale: LazyTensor, shape: tuple[int, ...], blocks: tuple[Block, ...]
) -> tuple[int, int]:
    """The size of the blocks that a weight [N, K] with this scale has. Raises ValueError where the
    scale is of none of them, or of several."""
    sizes = dict.fromkeys(block.within(shape) for block in blocks)
    shapes = {size: blocks_in(shape, size) for size in sizes}
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


def blocks_in(shape: tuple[int, ...], size: tuple[int, int]) -> tuple[int, int]:
    """How many blocks of rows and of columns a weight [N, K] has."""
    return -(-shape[0] // size[0]), -(-shape[1] // size[1])


def significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without ones at its end: published files store [N] or [N, 1], and one scale as [], [1] or
    [1, 1]."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape
