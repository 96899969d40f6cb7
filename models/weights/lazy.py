"""Arrays that are read when they are needed.

A checkpoint's weights are such until the engine's copy of them is made, one after the other: memory
then holds that copy and one array beside it, never the model twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from decoding.models.files import ModelFileError, short
from decoding.models.weights.dtypes import (
    EXACT,
    Array,
    Numbers,
    as_array,
    as_float32,
    as_tensor,
    is_float,
    name_of,
    without_gaps,
)
from decoding.models.weights.memory import address, release_pages

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 8 << 20  # bytes of the rows that are converted at a time: they stay in the cache


@dataclass(frozen=True)
class Quantised:
    """What a matrix was stored as in 8 bits: each row is its numbers times its scale.

    numbers: [rows, columns], of a type of QUANTISED. scale: [rows].
    """

    numbers: LazyTensor
    scale: LazyTensor


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A stored tensor, or a function of some.

    shape, dtype: as stored; of a function, of its result. open: a context in which the numbers are
    an array, in their type. inputs: of a function. parts: what it is made of along its first
    dimension. name: of a stored tensor. key: equal for tensors that are the same numbers. scale: of
    a matrix that was stored in int8, [rows]: each row is whole numbers from -128 to 127 times its
    scale. cut: gives some of it along an axis, of no more numbers than these need.
    """

    shape: tuple[int, ...]
    dtype: str
    open: Callable[[], AbstractContextManager[Array]]
    inputs: tuple[LazyTensor, ...] = ()
    parts: tuple[LazyTensor, ...] = ()
    name: str = ""
    key: object = field(default_factory=object)
    quantised: Quantised | None = None
    cut: Callable[[int, range], LazyTensor] | None = None

    def check_finite(self) -> None:
        """Raises ValueError that names a stored tensor which holds NaN or infinity."""
        for tensor in self.inputs:
            tensor.check_finite()
        if not self.inputs:
            with self.open() as stored:
                if not is_finite(stored):
                    raise ValueError(f"{self.name} holds NaN or inf")

    def read(self) -> Array:
        """A copy in float32. Raises ValueError as check_finite() does."""
        self.check_finite()
        with self.open() as array:
            return np.array(as_float32(array), order="C")


Weight: TypeAlias = "Numbers | LazyTensor"


class Weights(Mapping[str, "Tensor"]):
    """Weights by their canonical names: each is read, in float32, when it is asked for."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = {name: as_lazy(weight, name) for name, weight in weights.items()}

    def __getitem__(self, name: str) -> Tensor:
        return as_tensor(self._weights[name].read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def lazy(self, name: str) -> LazyTensor:
        return self._weights[name]


def as_lazy(weight: Weight, name: str = "") -> LazyTensor:
    return weight if isinstance(weight, LazyTensor) else stored(name, weight)


def stored(name: str, numbers: Numbers, *, mapped: bool = False) -> LazyTensor:
    """mapped: they lie in a mapped file, whose pages leave memory when they have been read."""

    @contextmanager
    def opened() -> Iterator[Array]:
        array = as_array(numbers)
        yield array
        if mapped and array.flags.c_contiguous:
            release_pages(array)

    shape, dtype = tuple(numbers.shape), name_of(numbers.dtype)
    return LazyTensor(shape, dtype, opened, name=name, key=identity(numbers))


def exact(array: Array) -> Array:
    """The numbers as the engine reads them: without gaps, at addresses that are multiples of their
    size, and in float32 where their type is an unusual one."""
    kept = array if name_of(array.dtype) in EXACT else as_float32(array)
    return without_gaps(kept) if kept.flags.aligned else np.require(kept, requirements=["C", "A"])


def pieces(weight: LazyTensor) -> Iterator[Array]:
    """Its rows as the engine reads them, some after the other: all of a part at once where they lie
    so."""
    for part in weight.parts or (weight,):
        with part.open() as array:
            is_exact = name_of(array.dtype) in EXACT and array.flags.aligned
            if is_exact and array.flags.c_contiguous:
                yield array
            else:
                yield from map(exact, in_chunks(array))


def stored_in(path: Path, tensors: object) -> dict[str, LazyTensor]:
    """What torch.load gave of a file; mapped, where torch can.

    Raises ModelFileError as tensors_in(), and where they have more bytes than the file: strides can
    make much of little.
    """
    from decoding.models.weights.torch_files import is_mapped

    given = tensors_in(path, tensors)
    sizes = {identity(tensor): tensor.nbytes for tensor in given.values()}
    if sum(sizes.values()) > path.stat().st_size:
        raise ModelFileError(f"{path} has fewer bytes than the tensors that it claims to hold")
    mapped = is_mapped(path)
    return {name: stored(name, tensor, mapped=mapped) for name, tensor in given.items()}


def tensors_in(path: Path, tensors: object) -> dict[str, Tensor]:
    """Raises ModelFileError for anything but dense tensors and their names."""
    if not isinstance(tensors, Mapping):
        raise ModelFileError(f"{path} must hold tensors by their names, got {short(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not is_dense(tensor):
            kind = type(tensor).__name__
            raise ModelFileError(f"{path}: {short(name)} must be a dense tensor, got {kind}")
    return dict(tensors)


def is_dense(value: object) -> bool:
    """Whether it is a tensor that NumPy can have, too."""
    import torch

    if not isinstance(value, torch.Tensor):
        return False
    return value.layout is torch.strided and value.device.type == "cpu"


def unread(name: str, shape: tuple[int, ...], dtype: str, load: Callable[[], Array]) -> LazyTensor:
    """A stored tensor that `load` reads from its file."""

    @contextmanager
    def opened() -> Iterator[Array]:
        yield load()

    return LazyTensor(shape, dtype, opened, name=name)


def joined(*parts: LazyTensor) -> LazyTensor:
    """The parts one behind the other, along their first dimension."""
    if len(parts) == 1:
        return parts[0]
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    given = [part.quantised for part in parts if part.quantised is not None]
    whole = None
    if len(given) == len(parts) and len({each.numbers.dtype for each in given}) == 1:
        numbers = joined(*(each.numbers for each in given))
        whole = Quantised(numbers, joined(*(each.scale for each in given)))
    return replace(moved(shape, concatenated, *parts), parts=parts, quantised=whole)


def concatenated(*arrays: Array) -> Array:
    same = len({array.dtype for array in arrays}) == 1
    return np.concatenate(arrays if same else [as_float32(array) for array in arrays])


def part(tensor: LazyTensor, axis: int, some: range) -> LazyTensor:
    """Some of a tensor along an axis."""
    if tensor.cut is not None:
        return tensor.cut(axis, some)
    shape = (*tensor.shape[:axis], len(some), *tensor.shape[axis + 1 :])
    index = (slice(None),) * axis + (slice(some.start, some.stop),)
    quantised = tensor.quantised
    if quantised is not None:
        scale = part(quantised.scale, 0, some) if axis == 0 else quantised.scale
        quantised = Quantised(part(quantised.numbers, axis, some), scale)
    return replace(moved(shape, itemgetter(index), tensor), quantised=quantised)


def moved(shape: tuple[int, ...], function: Callable[..., Array], *inputs: Weight) -> LazyTensor:
    """function: of the inputs in their types; it changes where numbers are, not what they are.
    shape: of its result."""
    given = tuple(map(as_lazy, inputs))
    dtypes = {tensor.dtype for tensor in given}
    return function_of(shape, dtypes.pop() if len(dtypes) == 1 else "float32", function, given)


def computed(shape: tuple[int, ...], function: Callable[..., Array], *inputs: Weight) -> LazyTensor:
    """function: of the inputs in float32, gives float32. shape: of its result."""
    given = tuple(map(as_lazy, inputs))

    def checked(*arrays: Array) -> Array:
        numbers = [as_float32(array) for array in arrays]
        for weight, array in zip(given, numbers, strict=True):
            if not is_finite(array):
                weight.check_finite()  # names it
        return function(*numbers)

    return function_of(shape, "float32", checked, given)


def function_of(
    shape: tuple[int, ...],
    dtype: str,
    function: Callable[..., Array],
    inputs: tuple[LazyTensor, ...],
) -> LazyTensor:
    @contextmanager
    def opened() -> Iterator[Array]:
        with ExitStack() as context:
            arrays = [context.enter_context(tensor.open()) for tensor in inputs]
            with np.errstate(all="ignore"):  # what is not finite is found where it is packed
                result = function(*arrays)
            assert result.shape == shape
            yield result

    return LazyTensor(shape, dtype, opened, inputs)


def in_chunks(array: Array) -> Iterator[Array]:
    """Rows of the first dimension, CHUNK bytes of float32 at a time."""
    rows = max(1, CHUNK // max(1, 4 * prod(array.shape[1:])))
    for first in range(0, len(array), rows):
        yield array[first : first + rows]


def is_finite(array: Array) -> bool:
    """Whether float32 holds all its numbers."""
    if not is_float(name_of(array.dtype)):
        return True
    chunks = map(as_float32, in_chunks(np.atleast_1d(array)))
    return all(np.isfinite((rows.min(), rows.max())).all() for rows in chunks if rows.size)


def identity(numbers: Numbers) -> tuple[Any, ...]:
    """Equal for arrays, or tensors, that are views of the same numbers."""
    if isinstance(numbers, np.ndarray):
        return (address(numbers), numbers.shape, numbers.strides, name_of(numbers.dtype))
    return (numbers.data_ptr(), numbers.shape, numbers.stride(), numbers.dtype)
