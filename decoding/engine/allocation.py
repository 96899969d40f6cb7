"""Memory on a model's device: the CPU's, or a GPU's own, for which nobody imports torch."""

from __future__ import annotations

from decoding import _C
from decoding.common.arrays import Array
from decoding.common.device import Device, torch_cuda
from decoding.engine.memory import OutOfMemoryError
from decoding.models.weights.dtypes import Stored, name_of
from decoding.models.weights.memory import block


def empty(size: int, device: Device) -> Stored:
    """uint8 [size]. Raises MemoryError where there is no memory left."""
    if device.index is None:
        return block(size)
    try:
        return _C.DeviceArray(size, device.index)
    except MemoryError:
        cuda = torch_cuda()
        if cuda is None:
            raise
    cuda.empty_cache()  # what torch's allocator holds and nobody uses
    return _C.DeviceArray(size, device.index)


def copied_to(device: Device, array: Array) -> Stored:
    """A contiguous array for a model on `device`: itself on the CPU. Raises decoding.Error where a
    GPU has no memory left."""
    if device.index is None:
        return array
    try:
        memory = _C.DeviceArray(array.nbytes, device.index)
    except MemoryError as error:
        message = f"{array.nbytes} bytes do not fit into the memory of {device}"
        raise OutOfMemoryError(message) from error
    copy = memory.view(name_of(array.dtype), array.shape)
    copy.copy_from(array)
    return copy
