"""The tensors of a checkpoint's files: reading, and taking them by their published names."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


def load_torch(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


# In the order in which transformers looks for them.
FORMATS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    "model.safetensors": load_file,
    "pytorch_model.bin": load_torch,
}


def read(directory: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face directory, as stored, of one file or of an index's shards.

    Raises FileNotFoundError for a missing file, ValueError for a damaged one.
    """
    for name, loader in FORMATS.items():
        path, index = directory / name, directory / f"{name}.index.json"
        if path.is_file():
            return read_file(path, loader)
        if index.is_file():
            return read_shards(index, loader)
    raise FileNotFoundError(
        f"{directory} holds no weights: expected one of {', '.join(FORMATS)}, or its .index.json"
    )


def holds_weights(directory: Path) -> bool:
    return any(
        (directory / f"{name}{index}").exists() for name in FORMATS for index in ("", ".index.json")
    )


def read_file(path: Path, loader: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    try:
        return loader(path)
    except (SafetensorError, pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be read as weights: {error}") from error


def read_shards(index: Path, loader: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    try:
        shard_of: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{index} is not an index of weights: {error!r}") from error
    state: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        path = index.parent / shard
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing, but {index.name} names it")
        state |= read_file(path, loader)
    for name, shard in shard_of.items():
        if name not in state:
            raise ValueError(f"{shard} lacks the tensor {name}, which {index.name} promises")
    return state


class Checkpoint:
    """Tensors by their published names, taken one by one; a leftover is an error.

    What shares storage there shares it here.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self._taken: set[str] = set()
        self._converted: dict[tuple[object, ...], Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._state:
            raise ValueError(f"the checkpoint lacks the tensor {name}")
        return tuple(self._state[name].shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type that most of the numbers are stored in."""
        numbers: Counter[torch.dtype] = Counter()
        for tensor in self._state.values():
            if tensor.is_floating_point():
                numbers[tensor.dtype] += tensor.numel()
        return max(numbers, key=numbers.__getitem__, default=torch.float32)

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor in float32, copied only where it must be.

        Raises ValueError when it is missing, of another shape or not finite.
        """
        if name not in self._state:
            raise ValueError(f"the checkpoint lacks the tensor {name}")
        self._taken.add(name)
        tensor = self._state[name]
        check(name, tensor, shape)
        key = identity(tensor)
        if key not in self._converted:
            self._converted[key] = tensor.detach().to("cpu", torch.float32).contiguous()
        return self._converted[key]

    def finish(self, may_be_left: Callable[[str], bool]) -> None:
        """Raises ValueError for tensors that nobody took, but for those that may be left."""
        left = [name for name in self._state if name not in self._taken and not may_be_left(name)]
        if left:
            raise ValueError(
                f"the checkpoint has unexpected tensors, which we would ignore: {', '.join(left)}"
            )


def check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have the shape {list(shape)}, got {list(tensor.shape)}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
    if not is_finite(tensor):
        raise ValueError(f"{name} holds NaN or inf")


def is_finite(tensor: Tensor) -> bool:
    """Whether float32 holds all its numbers. In one read: isfinite() takes 20 times as long."""
    return tensor.numel() == 0 or bool(torch.stack(tensor.aminmax()).float().isfinite().all())


def identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are views of the same numbers."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
