"""Tensors on their way from a checkpoint's files to the engine: reading, checking, packing.

The canonical names are those of our own modules' state dicts (transformer.py, gpt.py).
"""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from decoding.models import memory
from decoding.models.gpt import GPT
from decoding.models.spec import ModelSpec
from decoding.models.transformer import Transformer

PANEL = 64  # outputs in a panel of a packed linear weight; kPanel in csrc/kernels/linear.h
ALIGNMENT = 256  # bytes; of every tensor in a packed block
LINEAR = ("qkv", "q", "kv", "out", "up", "down", "output")


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
    if not tensor.float().isfinite().all():
        raise ValueError(f"{name} holds NaN or inf")


def module(spec: ModelSpec, *, output_bias: bool = False) -> Transformer | GPT:
    """The torch module of a spec, with new weights."""
    if spec.encoder is None:
        return GPT(spec)
    return Transformer(spec, output_bias=output_bias)


def shapes(spec: ModelSpec, *, output_bias: bool = False) -> dict[str, tuple[int, ...]]:
    """The canonical names of a model's weights, and their unpacked shapes."""
    with torch.device("meta"):
        state = module(spec, output_bias=output_bias).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


@dataclass(frozen=True)
class Place:
    """A tensor of the packed block."""

    source: str  # the weight that fills it
    shape: tuple[int, ...]
    dtype: torch.dtype
    panels: bool


def pack(
    state: Mapping[str, Tensor],
    spec: ModelSpec,
    device: torch.device = memory.CPU,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """What the engine of `device` is given: the names of `state`, copied into one block there.

    Tables and linear weights [N, K] are of the type `dtype`, norms and biases float32. On the CPU
    linear weights lie in panels [ceil(N / 64), K, 64], zero behind the last output. What shares
    storage in `state` shares it here, but for panels. Raises ValueError that names a missing,
    unexpected, mis-shaped or not finite tensor, torch.OutOfMemoryError where a GPU has no room.
    """
    expected = shapes(spec, output_bias="output.bias" in state)
    unexpected = [name for name in state if name not in expected]
    if unexpected:
        raise ValueError(f"this model has no weights named {', '.join(unexpected)}")
    keys: dict[str, object] = {}  # of each name; equal ones are stored once
    places: dict[object, Place] = {}
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"the weight {name} is missing")
        check(name, state[name], shape)
        panels = device.type == "cpu" and is_linear(name)
        keys[name] = name if panels else identity(state[name])
        places[keys[name]] = Place(
            source=name,
            shape=panel_shape(*shape) if panels else shape,
            dtype=dtype if len(shape) == 2 else torch.float32,
            panels=panels,
        )
    blocks = carve(places, device)
    for key, place in places.items():
        weight = converted(place.source, state[place.source].detach(), place.dtype)
        if place.panels:
            fill_panels(blocks[key], weight)
        else:
            blocks[key].copy_(weight)
    return {name: blocks[key] for name, key in keys.items()}


def is_linear(name: str) -> bool:
    return name.endswith(tuple(f"{linear}.weight" for linear in LINEAR))


def identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are views of the same numbers."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def converted(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Raises ValueError where a number is beyond what `dtype` can hold."""
    found = weight.to(dtype)
    if not found.isfinite().all():
        most, kind = torch.finfo(dtype).max, str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{name} holds {float(weight.abs().max()):.3g}, and {kind} ends at {most:.3g}"
            + (': pass dtype="bfloat16"' if dtype == torch.float16 else "")
        )
    return found


def carve(places: Mapping[object, Place], device: torch.device) -> dict[object, Tensor]:
    """A tensor for each place, all in one block."""
    sizes = [math.prod(place.shape) * place.dtype.itemsize for place in places.values()]
    padded = [size + -size % ALIGNMENT for size in sizes]
    parts = torch.split(memory.empty(sum(padded), device), padded)
    return {
        key: part[:size].view(place.dtype).view(place.shape)
        for (key, place), part, size in zip(places.items(), parts, sizes, strict=True)
    }


def panel_shape(outputs: int, inputs: int) -> tuple[int, int, int]:
    return (-(-outputs // PANEL), inputs, PANEL)


def fill_panels(panels: Tensor, weight: Tensor) -> None:
    """weight: [N, K], into panels: [ceil(N / 64), K, 64]."""
    whole, rest = divmod(weight.shape[0], PANEL)
    panels[:whole] = weight[: whole * PANEL].reshape(whole, PANEL, weight.shape[1]).transpose(1, 2)
    if rest:
        panels[whole] = 0
        panels[whole, :, :rest] = weight[-rest:].t()
