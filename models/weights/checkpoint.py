"""The tensors of a checkpoint's files: reading, and taking them by their published names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import safe_open

from decoding.models.files import (
    VOCABULARY,
    Directory,
    ModelFileError,
    naming_option,
    open_file,
    parse_json,
    read_object,
    short,
)
from decoding.models.weights.dtypes import DTYPES, is_float
from decoding.models.weights.lazy import LazyTensor, Weight, as_lazy, stored, stored_in
from decoding.models.weights.memory import mapped

State = dict[str, LazyTensor]
SMALL = 1 << 20  # numbers of a table: 1024 positions of a width of 1024
SAFETENSORS_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def load_safetensors(path: Path) -> State:
    with safe_open(path, "np"):  # checks that the header fits the file
        pass
    block = mapped(path)
    size = int.from_bytes(block[:8].tobytes(), "little")
    entries = parse_json(block[8 : 8 + size].tobytes(), f"{path}: its header", VOCABULARY)
    entries.pop("__metadata__", None)
    state = {}
    for name, entry in entries.items():
        if entry["dtype"] not in SAFETENSORS_TYPES:
            raise ModelFileError(f"{path}: {name} is of the type {entry['dtype']}")
        dtype, shape = SAFETENSORS_TYPES[entry["dtype"]], tuple(entry["shape"])
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        numbers = block[begin:end].view(DTYPES[dtype]).reshape(shape)
        state[name] = stored(name, numbers, mapped=True)
    return state


def load_torch(path: Path) -> State:
    from decoding.models.weights import torch_files

    return stored_in(path, torch_files.load(path, weights_only=True))


# In the order in which transformers looks for them.
FORMATS: dict[str, Callable[[Path], State]] = {
    "model.safetensors": load_safetensors,
    "pytorch_model.bin": load_torch,
}


def read(directory: Directory) -> State:
    """The tensors of a Hugging Face directory, as stored, of one file or of an index's shards.

    Raises FileNotFoundError for a missing file, ModelFileError for a damaged one.
    """
    for name, loader in FORMATS.items():
        path, index = directory.find(name), directory.find(f"{name}.index.json")
        if path is not None:
            return read_file(path, loader)
        if index is not None:
            return read_shards(directory, index, loader)
    raise FileNotFoundError(
        f"{directory.path} holds no weights: expected one of {', '.join(FORMATS)}, or its "
        ".index.json"
    )


def holds_weights(directory: Path) -> bool:
    return any(
        (directory / f"{name}{index}").exists() for name in FORMATS for index in ("", ".index.json")
    )


def read_file(path: Path, loader: Callable[[Path], State]) -> State:
    open_file(path).close()  # or says that it is no regular one
    try:
        return loader(path)
    except ModelFileError:
        raise
    except Exception as error:  # a damaged file makes safetensors, pickle and torch raise any
        if isinstance(error, MemoryError) and isinstance(error.__cause__, OSError):
            raise  # the system has no room to map it
        raise ModelFileError(f"{path} cannot be read as weights: {short(error)}") from error


def read_shards(directory: Directory, index: Path, loader: Callable[[Path], State]) -> State:
    shard_of = read_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(s, str) for s in shard_of.values()):
        raise ModelFileError(
            f"{index} is not an index of weights: weight_map must name the file of each tensor, "
            f"got {short(shard_of)}"
        )
    state: State = {}
    for shard in sorted(set(shard_of.values())):
        with naming_option(f"weight_map of {index.name}"):
            path = directory.required(shard, f"{index.name} names it")
        state |= read_file(path, loader)
    for name, shard in shard_of.items():
        if name not in state:
            raise ModelFileError(f"{shard} lacks the tensor {name}, which {index.name} promises")
    return state


class Checkpoint:
    """Tensors by their published names, taken one by one; a leftover is an error."""

    def __init__(self, state: Mapping[str, Weight]) -> None:
        self._state = {name: as_lazy(tensor, name) for name, tensor in state.items()}
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def shape(self, name: str, *axes: int) -> tuple[int, ...]:
        """axes: how many it may have. Raises ValueError for others, and for a tensor that is
        missing or empty."""
        if name not in self._state:
            raise ValueError(f"the checkpoint lacks the tensor {name}")
        shape = self._state[name].shape
        if len(shape) not in axes:
            raise ValueError(f"{name} must have {axes[0]} axes, got the shape {list(shape)}")
        if 0 in shape:
            raise ValueError(f"{name} must hold numbers, got the shape {list(shape)}")
        return shape

    def check_computed(self, option: str, *shape: int) -> None:
        """Raises ValueError for a table that an option asks to compute and that is larger than all
        that is stored, but for a small one: a number in a file must not fill the memory."""
        stored = sum(math.prod(tensor.shape) for tensor in self._state.values())
        if math.prod(shape) > max(stored, SMALL):
            raise ValueError(
                f"the configuration: {option} asks for a table of {list(shape)}, more numbers than "
                "the checkpoint has"
            )

    @property
    def dtype(self) -> str:
        """The type that most of the numbers are stored in, of those that are not quantised."""
        numbers: Counter[str] = Counter()
        for tensor in self._state.values():
            if is_float(tensor.dtype) and not tensor.inputs:
                numbers[tensor.dtype] += math.prod(tensor.shape)
        return max(numbers, key=numbers.__getitem__, default="float32")

    def take(self, name: str, *shape: int) -> LazyTensor:
        """Raises ValueError when the tensor is missing, of another shape or of no float type."""
        if name not in self._state:
            raise ValueError(f"the checkpoint lacks the tensor {name}")
        self._taken.add(name)
        check(name, self._state[name], shape)
        return self._state[name]

    def finish(self, may_be_left: Callable[[str], bool]) -> None:
        """Raises ValueError for tensors that nobody took, but for those that may be left."""
        left = [name for name in self._state if name not in self._taken and not may_be_left(name)]
        if left:
            raise ValueError(
                f"the checkpoint has unexpected tensors, which we would ignore: {', '.join(left)}"
            )


def check(name: str, tensor: LazyTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} must have the shape {list(shape)}, got {list(tensor.shape)}")
    if not is_float(tensor.dtype):
        raise ValueError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
