"""A checkpoint's quantization_config: how weights that are stored in 8 bits are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from decoding.models.files import short
from decoding.models.layouts.options import MOST_SIZE

FORMATS = ("float-quantized", "int-quantized")
BITS = ("bits", "w_bit", "num_bits")


class Block(NamedTuple):
    """The numbers of a weight that have one scale. None: all along that axis."""

    rows: int | None
    columns: int | None

    def within(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The size of a block in a weight [N, K]."""
        rows, columns = shape
        return min(self.rows or rows, rows), min(self.columns or columns, columns)


TENSOR, CHANNEL = Block(None, None), Block(1, None)


@dataclass(frozen=True)
class Scheme:
    """How weights are scaled. blocks: one for each group of weights that the file tells apart.
    scales: the last word of the names of tensors that hold scales."""

    blocks: tuple[Block, ...]
    scales: tuple[str, ...]


def scheme_of(content: object) -> Scheme:
    """Of config.json's quantization_config. Raises ValueError that names a method, a format or an
    option that is not read."""
    config = table("quantization_config", content)
    match config.get("quant_method"):
        case "fp8":
            size = config.get("weight_block_size")
            block = TENSOR if size is None else block_of("weight_block_size", size)
            return Scheme((block,), ("weight_scale_inv", "weight_scale"))
        case "compressed-tensors":
            return Scheme(compressed_blocks(config), ("weight_scale",))
        case method:
            refuse(f"quant_method={short(method)}", bits_of(config))


def compressed_blocks(config: Mapping[str, Any]) -> tuple[Block, ...]:
    groups = table("config_groups", config.get("config_groups"))
    weights = [table(name, group).get("weights") for name, group in groups.items()]
    schemes = [table("weights", each) for each in weights if each is not None]
    name = config.get("format")
    for scheme in schemes:
        if name not in FORMATS or scheme.get("num_bits") != 8:
            refuse(f"compressed-tensors of format={short(name)}", bits_of(scheme))
    sparsity = table("sparsity_config", config.get("sparsity_config") or {})
    if sparsity.get("format", "dense") != "dense":
        refuse(f"compressed-tensors of a sparse format={short(sparsity['format'])}")
    if table("transform_config", config.get("transform_config") or {}).get("config_groups"):
        refuse("compressed-tensors with transform_config")
    blocks = tuple(dict.fromkeys(map(scheme_block, schemes)))
    if not blocks:
        raise ValueError("config.json: quantization_config: config_groups have no weights")
    return blocks


def scheme_block(scheme: Mapping[str, Any]) -> Block:
    match scheme.get("strategy"):
        case "tensor":
            return TENSOR
        case "channel":
            return CHANNEL
        case "group":
            return block_of("group_size", [1, scheme.get("group_size")])
        case "block":
            return block_of("block_structure", scheme.get("block_structure"))
        case strategy:
            raise ValueError(
                f"config.json: quantization_config: strategy={short(strategy)} is not supported "
                "for weights, only tensor, channel, group and block"
            )


def block_of(option: str, size: object) -> Block:
    """Of rows and columns; earlier files of compressed-tensors write "128x128"."""
    given = size.split("x") if isinstance(size, str) and len(size) < 20 else size
    if isinstance(given, list) and given is not size:
        given = [int(each) if each.isdecimal() else each for each in given]
    sizes = given if isinstance(given, list) else []
    if len(sizes) != 2 or not all(type(n) is int and 1 <= n <= MOST_SIZE for n in sizes):
        raise ValueError(
            f"config.json: quantization_config: {option} must be numbers from 1 to {MOST_SIZE} of "
            f"rows and columns, got {short(size)}"
        )
    return Block(*sizes)


def table(name: str, content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(
            f"config.json: quantization_config: {name} must be a table, got {short(content)}"
        )
    return content


def bits_of(config: Mapping[str, Any]) -> object:
    """Of each weight, where the file tells."""
    if config.get("load_in_4bit") or "fp4" in f"{config.get('quant_method')}".lower():
        return 4
    if config.get("load_in_8bit"):
        return 8
    return next((config[name] for name in BITS if name in config), None)


def refuse(what: str, bits: object = None) -> NoReturn:
    sizes = "" if bits is None else f" (weights of {short(bits)} bits)"
    raise ValueError(
        f"config.json: quantization_config: {what}{sizes} is not read, only 8 bits of fp8 and of "
        f"compressed-tensors ({', '.join(FORMATS)}): load the checkpoint in 16 or 32 bits that it "
        'was made from, with dtype="int8" if memory is short'
    )
