"""Tensors on their way from a checkpoint's files to the engine: reading, checking, packing.

The canonical names are those of our own modules' state dicts (transformer.py, gpt.py).
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Mapping
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


def pack(state: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """What the engine is given: the names of `state`, float32, copied into one block; linear
    weights [N, K] in panels [ceil(N / 64), K, 64], zero behind the last output.

    What shares storage in `state` shares it here, but for linear weights. Raises ValueError that
    names a missing, unexpected, mis-shaped or not finite tensor.
    """
    expected = shapes(spec, output_bias="output.bias" in state)
    unexpected = [name for name in state if name not in expected]
    if unexpected:
        raise ValueError(f"this model has no weights named {', '.join(unexpected)}")
    places: dict[str, object] = {}  # of each name; equal ones are stored once
    packed_shapes: dict[object, tuple[int, ...]] = {}
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"the weight {name} is missing")
        check(name, state[name], shape)
        linear = name.endswith(tuple(f"{linear}.weight" for linear in LINEAR))
        places[name] = name if linear else identity(state[name])
        packed_shapes[places[name]] = panel_shape(*shape) if linear else shape
    blocks = carve(packed_shapes)
    for name, place in places.items():
        if place == name:
            fill_panels(blocks[place], state[name].detach())
        else:
            blocks[place].copy_(state[name].detach())
    return {name: blocks[place] for name, place in places.items()}


def identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are views of the same numbers."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def carve(shapes: Mapping[object, tuple[int, ...]]) -> dict[object, Tensor]:
    """A float32 tensor of each shape, all in one block, each aligned to 64 bytes."""
    sizes = [math.prod(shape) + -math.prod(shape) % 16 for shape in shapes.values()]
    parts = torch.split(memory.empty(4 * sum(sizes)).view(torch.float32), sizes)
    return {
        key: part[: math.prod(shape)].view(shape)
        for (key, shape), part in zip(shapes.items(), parts, strict=True)
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
