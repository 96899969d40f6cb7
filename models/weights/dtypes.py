"""Types of weights by their names, and NumPy's arrays of them.

NumPy has no bfloat16 and no float8: there an array is one of a record with that name and one field,
whose numbers can be moved but not computed with. Torch is imported only where it has been already,
by whoever holds a tensor, or where somebody asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import CapsuleType, TypeIs

Array = npt.NDArray[Any]  # a docstring or a comment has its type and shape


class DeviceArray(Protocol):
    """Numbers in a GPU's memory: decoding._C.DeviceArray."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def stride(self) -> tuple[int, ...]: ...
    def data_ptr(self) -> int: ...
    def dlpack(self) -> CapsuleType: ...
    def view(self, dtype: str, shape: Sequence[int]) -> DeviceArray: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: int | slice) -> DeviceArray: ...
    def copy_from(self, array: Array) -> None: ...
    def copy_to(self, array: Array) -> None: ...


Stored: TypeAlias = "Array | DeviceArray"  # as an engine has its weights
Numbers: TypeAlias = "Stored | Tensor"

BFLOAT16 = np.dtype([("bfloat16", "<u2")], align=True)
FLOAT8 = {
    name: np.dtype([(name, "u1")]) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
}
PLAIN = ("float64", "float32", "float16", *(f"int{bits}" for bits in (64, 32, 16, 8)), "uint8")
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in (*PLAIN, "bool")},
    "bfloat16": BFLOAT16,
    **FLOAT8,
}
EXACT = ("float32", "float16", "bfloat16")  # float32 holds all their numbers
# Those of weights with a scale for each row, and the largest number.
QUANTISED = {"int8": 128, "float8_e4m3fn": 448}


def name_of(dtype: Any) -> str:
    """The name of a type: NumPy's, torch's or a name."""
    if isinstance(dtype, np.dtype):
        return dtype.names[0] if dtype.names else dtype.name
    return str(dtype).removeprefix("torch.")


def is_float(name: str) -> bool:
    return "float" in name


def is_device_array(numbers: Numbers) -> TypeIs[DeviceArray]:
    return isinstance(numbers.dtype, str)


def as_array(numbers: Numbers) -> Array:
    """The same numbers in the same memory; those on a GPU are copied."""
    if isinstance(numbers, np.ndarray):
        return numbers
    if is_device_array(numbers):
        return copied(numbers)
    import torch

    tensor, name = numbers.detach().cpu(), name_of(numbers.dtype)
    if name != "bfloat16" and name not in FLOAT8:
        array: Array = tensor.numpy()
        return array
    bits = torch.int16 if tensor.itemsize == 2 else torch.uint8
    return tensor.view(bits).numpy().view(DTYPES[name])


def copied(numbers: DeviceArray) -> Array:
    """With its gaps, where it has some: one copy takes less time than one for each row."""
    dtype = DTYPES[numbers.dtype]
    memory = np.empty(numbers.nbytes, np.uint8)
    numbers.copy_to(memory)
    strides = [stride * dtype.itemsize for stride in numbers.stride()]
    return np.ndarray(numbers.shape, dtype, memory, strides=strides)


def without_gaps(array: Array) -> Array:
    """The array, or a copy whose numbers lie one behind the other. NumPy copies a record, which a
    bfloat16 is to it, some thirty times slower than a number."""
    if array.flags.c_contiguous:
        return array
    bits = array.view(np.uint16) if array.dtype == BFLOAT16 else array
    return np.ascontiguousarray(bits).view(array.dtype)


def as_tensor(numbers: Numbers) -> Tensor:
    """The same numbers in the same memory."""
    import torch

    if isinstance(numbers, torch.Tensor):
        return numbers
    if is_device_array(numbers):
        from torch.utils.dlpack import from_dlpack

        there: Tensor = from_dlpack(numbers.dlpack())
        return there
    if not numbers.dtype.names:
        return torch.from_numpy(numbers)
    bits = np.int16 if numbers.itemsize == 2 else np.uint8
    return torch.from_numpy(numbers.view(bits)).view(getattr(torch, name_of(numbers.dtype)))


def as_float32(array: Array) -> Array:
    """The numbers in float32; beyond its range they are infinite."""
    if array.dtype == BFLOAT16:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if array.dtype.names:
        return float8_numbers(name_of(array.dtype))[array.view(np.uint8)]
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


@cache
def float8_numbers(name: str) -> Array:
    """What each byte of a type of FLOAT8 stands for, float32 [256]."""
    numbers: Array = FLOAT8_NUMBERS[name](np.arange(256, dtype=np.uint16))
    numbers.flags.writeable = False
    return numbers


def e4m3(bits: Array) -> Array:
    """Four bits of exponent, three of mantissa, no infinity. float16's exponent counts from 15,
    this one from 7."""
    numbers = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).view(np.float16).astype(np.float32) * 2**8
    numbers[bits & 0x7F == 0x7F] = np.nan
    return numbers


def e5m2(bits: Array) -> Array:
    """The upper half of a float16."""
    return (bits << 8).view(np.float16).astype(np.float32)


def e8m0(bits: Array) -> Array:
    """Powers of two: an exponent alone."""
    return np.where(bits == 255, np.nan, np.exp2(bits - 127.0)).astype(np.float32)


FLOAT8_NUMBERS: dict[str, Callable[[Array], Array]] = {
    "float8_e4m3fn": e4m3,
    "float8_e5m2": e5m2,
    "float8_e8m0fnu": e8m0,
}
