"""Tensors that are read when they are needed.

A checkpoint's weights are such until the engine's copy of them is made, one after the other: memory
then holds that copy and one tensor beside it, never the model twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from decoding.models.files import ModelFileError, short
from decoding.models.weights.memory import release_pages
from decoding.models.weights.torch_files import is_mapped

EXACT = (torch.float32, torch.float16, torch.bfloat16)  # float32 holds all their numbers
CHUNK = 8 << 20  # bytes of the rows that are converted at a time: they stay in the cache


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A stored tensor, or a function of some.

    shape, dtype: as stored; of a function, of its result. open: a context in which the tensor is in
    memory, on the CPU, in its type, or in float32 where that is float64 or an unusual one. inputs:
    of a function. parts: what it is made of along its first dimension. name: of a stored tensor.
    key: equal for tensors that are the same numbers.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    open: Callable[[], AbstractContextManager[Tensor]]
    inputs: tuple[LazyTensor, ...] = ()
    parts: tuple[LazyTensor, ...] = ()
    name: str = ""
    key: object = field(default_factory=object)

    def check_finite(self) -> None:
        """Raises ValueError that names a stored tensor which holds NaN or infinity."""
        for tensor in self.inputs:
            tensor.check_finite()
        if not self.inputs:
            with self.open() as stored:
                if not is_finite(stored):
                    raise ValueError(f"{self.name} holds NaN or inf")

    def read(self) -> Tensor:
        """A copy in float32. Raises ValueError as check_finite() does."""
        self.check_finite()
        with self.open() as tensor:
            return tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


Weight: TypeAlias = Tensor | LazyTensor


class Weights(Mapping[str, Tensor]):
    """Weights by their canonical names: each is read, in float32, when it is asked for."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = {name: as_lazy(weight, name) for name, weight in weights.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def lazy(self, name: str) -> LazyTensor:
        return self._weights[name]


def as_lazy(weight: Weight, name: str = "") -> LazyTensor:
    return stored(name, weight) if isinstance(weight, Tensor) else weight


def stored(name: str, tensor: Tensor, *, mapped: bool = False) -> LazyTensor:
    """mapped: the tensor lies in a mapped file, whose pages leave memory when it has been read."""

    @contextmanager
    def opened() -> Iterator[Tensor]:
        kept = tensor.detach().cpu()
        yield (kept if kept.dtype in EXACT else kept.float()).contiguous()
        if mapped:
            release_pages(tensor)

    return LazyTensor(tuple(tensor.shape), tensor.dtype, opened, name=name, key=identity(tensor))


def stored_in(path: Path, tensors: object) -> dict[str, LazyTensor]:
    """What torch.load gave of a file; mapped, where torch can.

    Raises ModelFileError as tensors_in(), and where they have more bytes than the file: strides can
    make much of little.
    """
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
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or not is_dense(tensor):
            kind = type(tensor).__name__
            raise ModelFileError(f"{path}: {short(name)} must be a dense tensor, got {kind}")
    return dict(tensors)


def is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def unread(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, load: Callable[[], Tensor]
) -> LazyTensor:
    """A stored tensor that `load` reads from its file."""

    @contextmanager
    def opened() -> Iterator[Tensor]:
        loaded = load()
        yield (loaded if loaded.dtype in EXACT else loaded.float()).contiguous()

    return LazyTensor(shape, dtype, opened, name=name)


def joined(*parts: LazyTensor) -> LazyTensor:
    """torch.cat(parts)."""
    if len(parts) == 1:
        return parts[0]
    # torch.cat of meta tensors would import torch's compiler, which takes longer than many a model.
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    result = torch.empty(shape, dtype=dtype, device="meta")
    whole = function_of(lambda *tensors: torch.cat(tensors), parts, result)
    return LazyTensor(whole.shape, whole.dtype, whole.open, parts, parts)


def moved(function: Callable[..., Tensor], *inputs: Weight) -> LazyTensor:
    """function: of the inputs in their types; it changes where numbers are, not what they are."""
    return function_of(function, inputs)


def computed(function: Callable[..., Tensor], *inputs: Weight) -> LazyTensor:
    """function: of the inputs in float32."""
    given = tuple(map(as_lazy, inputs))

    def checked(*tensors: Tensor) -> Tensor:
        for weight, tensor in zip(given, tensors, strict=True):
            if tensor.device.type != "meta" and not is_finite(tensor):
                weight.check_finite()  # names it
        return function(*(tensor.float() for tensor in tensors))

    return function_of(checked, given)


def function_of(
    function: Callable[..., Tensor], inputs: tuple[Weight, ...], result: Tensor | None = None
) -> LazyTensor:
    """result: what it gives of meta tensors; None: the function is asked."""
    given = tuple(map(as_lazy, inputs))

    @contextmanager
    def opened() -> Iterator[Tensor]:
        with ExitStack() as context:
            yield function(*(context.enter_context(tensor.open()) for tensor in given))

    if result is None:
        shapes = (torch.empty(each.shape, dtype=each.dtype, device="meta") for each in given)
        result = function(*shapes)
    return LazyTensor(tuple(result.shape), result.dtype, opened, given)


def in_chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Rows of the first dimension, CHUNK bytes of float32 at a time."""
    rows = max(1, CHUNK // max(1, 4 * tensor[:1].numel())) if len(tensor) else 1
    yield from torch.split(tensor, rows)


def is_finite(tensor: Tensor) -> bool:
    """Whether float32 holds all its numbers. In one read: isfinite() takes 20 times as long."""
    return tensor.numel() == 0 or bool(torch.stack(tensor.aminmax()).float().isfinite().all())


def identity(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are views of the same numbers."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
