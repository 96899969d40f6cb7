"""llama2.c's checkpoints: .bin files of versions 0 to 2, and what its training saves as .pt.

Version 0 is seven numbers and then float32 weights; 1 and 2 begin with "ak42" and the version, and
their weights begin at byte 256. In version 2 products and tables are int8, `group` of them with a
common scale: a weight's numbers, then its scales.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decoding.models.files import Directory, ModelFileError, open_file
from decoding.models.formats.foreign import Foreign, plain
from decoding.models.layouts.options import size
from decoding.models.spec import MOST_LAYERS
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import LazyTensor, stored, stored_in, tensors_in, unread
from decoding.models.weights.memory import mapped

MAGIC = 0x616B3432
SIZES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
BOS, EOS = 1, 2  # as in Llama; llama2.c's own texts end where the next begins

NORMS = ("attention_norm", "ffn_norm")
ATTENTION = ("attention.wq", "attention.wk", "attention.wv", "attention.wo")
FEED_FORWARD = ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")
OF_LAYERS = {*NORMS, *ATTENTION, *FEED_FORWARD}
ANGLES = ("freqs_cos", "freqs_sin")  # they are computed today
OUTPUT = "output"
OLD_ORDER: tuple[str, ...] = (
    *("tok_embeddings", "attention_norm", *ATTENTION, "ffn_norm", *FEED_FORWARD, "norm"),
    *(*ANGLES, OUTPUT),
)
ORDER: tuple[str, ...] = (*NORMS, "norm", "tok_embeddings", *ATTENTION, *FEED_FORWARD, OUTPUT)


class Header(NamedTuple):
    """What stands before the weights. group: of numbers with one scale; 0: they are float32."""

    config: dict[str, int]
    order: tuple[str, ...]  # of the weights, each of all layers in a row
    first: int  # byte of the first
    group: int = 0


def is_model(path: Path) -> bool:
    """Whether a .bin file is of a model; llama2.c's vocabularies have that name too."""
    return read_header(path) is not None


def read(path: Path, directory: Directory) -> Foreign:
    header = read_header(path)
    if header is None:
        raise ModelFileError(
            f"{path} is no model of llama2.c: its size is not what its header says"
        )
    data = mapped(path)
    state, begin = dict[str, LazyTensor](), header.first
    for part, shape in weights_of(header):
        name, group = f"{part}.weight", header.group if len(shape) > 1 else 0
        end = begin + bytes_of(math.prod(shape), group)
        if group:
            read = partial(dequantised, path, begin, shape, group)
            state[name] = unread(name, shape, "float32", read)
        elif part not in ANGLES:
            numbers = data[begin:end].view(np.float32).reshape(shape)
            state[name] = stored(name, numbers, mapped=True)
        begin = end
    return foreign(header.config, state, directory)


def read_torch(path: Path, content: Mapping[str, Any], directory: Directory) -> Foreign:
    """What llama2.c's train.py saves."""
    tensors = tensors_in(path, content["model"])
    state = {name.removeprefix("_orig_mod."): weight for name, weight in tensors.items()}
    config = plain(path, content["model_args"])
    first = state.get("layers.0.feed_forward.w1.weight")
    if first is None or first.dim() != 2:
        raise ModelFileError(f"{path} lacks the weight layers.0.feed_forward.w1.weight")
    config["hidden_dim"] = len(first)
    return foreign(config, stored_in(path, state), directory)


def foreign(config: dict[str, Any], state: dict[str, LazyTensor], directory: Directory) -> Foreign:
    names = (f"tok{size(config, 'vocab_size')}", "tokenizer")
    files = [f"{name}.{kind}" for name in names for kind in ("bin", "model")]
    there = [name for name in files if directory.find(name) is not None]
    config |= {"model_type": "llama2c", "tokenizer_file": there[0] if there else None}
    generation = {"bos_token_id": BOS, "eos_token_id": [BOS, EOS]}
    return Foreign("Llama2c", config, generation, state, directory)


def read_header(path: Path) -> Header | None:
    """None where the file's size is not what its numbers say."""
    with open_file(path) as file:
        start, length = file.read(256), os.fstat(file.fileno()).st_size
    numbers = np.frombuffer(start[: len(start) // 4 * 4], "<i4").tolist()
    if len(numbers) < 11:  # no header, or one without the bytes behind it
        return None
    if numbers[0] == MAGIC:
        version, config = numbers[1], dict(zip(SIZES, numbers[2:9], strict=True))
        if version not in (1, 2):
            raise ModelFileError(f"{path} is of llama2.c's version {version}, supported are 0 to 2")
        order = ORDER[:-1] if start[36] else ORDER
        group = int.from_bytes(start[37:41], "little") if version == 2 else 0
        if version == 2 and group == 0:
            return None
        header = Header(config, order, 256, group)
    else:
        config = dict(zip(SIZES, numbers, strict=False))
        order = OLD_ORDER[:-1] if config["vocab_size"] > 0 else OLD_ORDER  # below 0: not shared
        header = Header(config | {"vocab_size": abs(config["vocab_size"])}, order, 28)
    return header if fits(header, length) else None


def fits(header: Header, length: int) -> bool:
    """Whether a file of `length` bytes is what its header says."""
    if min(header.config.values()) < 1 or header.config["n_layers"] > MOST_LAYERS:
        return False
    shapes = shapes_of(header.config)
    whole = all(
        math.prod(shapes[name]) % header.group == 0
        for name in header.order
        if header.group and len(shapes[name]) > 1
    )
    return whole and size_of(header) == length


def size_of(header: Header) -> int:
    """Bytes of the file."""
    size, shapes = header.first, shapes_of(header.config)
    for name in header.order:
        group = header.group if len(shapes[name]) > 1 else 0
        size += bytes_of(math.prod(shapes[name]), group) * (
            header.config["n_layers"] if name in OF_LAYERS else 1
        )
    return size


def weights_of(header: Header) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights, in the file's order."""
    shapes = shapes_of(header.config)
    for name in header.order:
        if name in OF_LAYERS:
            for layer in range(header.config["n_layers"]):
                yield f"layers.{layer}.{name}", shapes[name]
        else:
            yield name, shapes[name]


def shapes_of(config: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = config["dim"], config["hidden_dim"], config["vocab_size"]
    width = hidden // config["n_heads"]
    keys = (width * config["n_kv_heads"], hidden)
    square, angles = (hidden, hidden), (config["max_seq_len"], width // 2)
    return {
        **dict.fromkeys([*NORMS, "norm"], (hidden,)),
        **dict(zip(ATTENTION, (square, keys, keys, square), strict=True)),
        **dict(zip(FEED_FORWARD, ((inner, hidden), (hidden, inner), (inner, hidden)), strict=True)),
        **dict.fromkeys(ANGLES, angles),
        **dict.fromkeys(["tok_embeddings", OUTPUT], (vocab, hidden)),
    }


def bytes_of(count: int, group: int) -> int:
    """What a weight of `count` numbers takes in the file."""
    return count + count // group * 4 if group else 4 * count


def dequantised(path: Path, begin: int, shape: tuple[int, ...], group: int) -> Array:
    """float32, of the int8 weight at byte `begin`."""
    count = math.prod(shape)
    numbers = np.fromfile(path, np.int8, count, offset=begin).reshape(-1, group)
    scales = np.fromfile(path, "<f4", count // group, offset=begin + count)
    weight: Array = numbers * scales[:, None]
    return weight.reshape(shape)
