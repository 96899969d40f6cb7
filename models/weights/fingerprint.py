"""What tells two checkpoints apart without reading them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from decoding.models.weights.lazy import LazyTensor, Weights

SAMPLES = 16  # numbers of a stored tensor


def fingerprint(weights: Weights) -> str:
    """A digest of names, shapes, types, and of some numbers of each tensor."""
    digest = blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights.lazy(name)
        digest.update(repr((name, tensor.shape, tensor.dtype)).encode())
        for leaf in stored_of(tensor):
            with leaf.open() as array:
                numbers = array.reshape(-1)
                chosen = np.linspace(0, len(numbers) - 1, SAMPLES).astype(np.int64)
                digest.update(numbers[chosen].tobytes())
    return digest.hexdigest()


def stored_of(tensor: LazyTensor) -> Iterator[LazyTensor]:
    """The stored tensors that a function's result is made of, or the tensor itself."""
    if not tensor.inputs:
        yield tensor
    for each in tensor.inputs:
        yield from stored_of(each)
