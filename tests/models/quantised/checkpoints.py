"""Checkpoints with linear weights in 8 bits, as published, of small models of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoding.models import Loaded, load
from tests.support.checkpoints import State, stored, write
from tests.support.families import FAMILIES

MOST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.5}
OUTPUTS = ("lm_head", "embed_out")


@dataclass(frozen=True)
class Layout:
    """How a checkpoint stores its linear weights. block: rows and columns that have one scale; 0:
    all. scale_shape: what the file makes of a scale [R, C]."""

    method: str  # "fp8" or "compressed-tensors"
    dtype: torch.dtype
    block: tuple[int, int]
    asymmetric: bool = False
    scale_dtype: torch.dtype = torch.float32
    flat: bool = False  # scales are stored without axes of one number
    head: bool = False  # the output projection is quantised too

    @property
    def scale_name(self) -> str:
        return "weight_scale_inv" if self.method == "fp8" else "weight_scale"

    def config(self) -> dict[str, Any]:
        ignored = [] if self.head else [*OUTPUTS]
        if self.method == "fp8":
            size = None if self.block == (0, 0) else list(self.block)
            common = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
            return common | {"weight_block_size": size, "modules_to_not_convert": ignored}
        strategy = {(0, 0): "tensor", (1, 0): "channel"}.get(self.block)
        strategy = strategy or ("group" if self.block[0] == 1 else "block")
        weights = {
            "num_bits": 8,
            "type": "int" if self.dtype == torch.int8 else "float",
            "symmetric": not self.asymmetric,
            "strategy": strategy,
            "group_size": self.block[1] if strategy == "group" else None,
            "block_structure": list(self.block) if strategy == "block" else None,
            "dynamic": False,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "int-quantized" if self.dtype == torch.int8 else "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ignored,
            "kv_cache_scheme": None,
            "quantization_status": "compressed",
        }


FP8 = torch.float8_e4m3fn
LAYOUTS = {
    "fp8-blocks": Layout("fp8", FP8, (16, 20)),
    "fp8-bfloat16-scales": Layout("fp8", FP8, (16, 16), scale_dtype=torch.bfloat16),
    "fp8-one-scale": Layout("fp8", FP8, (0, 0), flat=True),
    "float-channel": Layout("compressed-tensors", FP8, (1, 0), scale_dtype=torch.bfloat16),
    "float-tensor": Layout("compressed-tensors", FP8, (0, 0)),
    "float-block": Layout("compressed-tensors", FP8, (12, 16), head=True),
    "float-group": Layout("compressed-tensors", FP8, (1, 16)),
    "int-channel": Layout("compressed-tensors", torch.int8, (1, 0)),
    "int-flat-channel": Layout("compressed-tensors", torch.int8, (1, 0), flat=True, head=True),
    "int-tensor": Layout("compressed-tensors", torch.int8, (0, 0)),
    "int-asymmetric": Layout("compressed-tensors", torch.int8, (1, 0), asymmetric=True),
    "int-group": Layout("compressed-tensors", torch.int8, (1, 16)),
}


class Stored(NamedTuple):
    """A weight as a file has it, and the numbers that it stands for."""

    numbers: Tensor  # of the layout's type [N, K]
    scale: Tensor  # [R, C]
    zero_point: Tensor | None  # int8 [R, C]
    values: Tensor  # float32 [N, K]


def quantise(weight: Tensor, layout: Layout) -> Stored:
    """Each block's largest number is the type's largest; int8 goes down to -128, as compressed-
    tensors has it."""
    outputs, inputs = weight.shape
    rows, columns = layout.block[0] or outputs, layout.block[1] or inputs

    def of_numbers(blocks: Tensor) -> Tensor:
        wide = blocks.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return wide[:outputs, :inputs].double()

    parts = [[block.abs().max() for block in line.split(columns, 1)] for line in weight.split(rows)]
    scale = (torch.tensor(parts) / MOST[layout.dtype]).to(layout.scale_dtype)
    zero_point = None
    steps = weight.double() / of_numbers(scale)
    if layout.asymmetric:
        zero_point = torch.arange(scale.numel()).reshape(scale.shape).sub(9).to(torch.int8)
        steps += of_numbers(zero_point)
    if layout.dtype == torch.int8:
        steps = steps.round().clamp(-128, 127)
    numbers = steps.to(layout.dtype)
    values = numbers.double() - (0 if zero_point is None else of_numbers(zero_point))
    return Stored(numbers, scale, zero_point, (values * of_numbers(scale)).float())


def linears(model: Any, layout: Layout) -> list[str]:
    """The modules that the layout quantises."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and (layout.head or name not in OUTPUTS)
        and f"{name}.weight" in stored(model)
    ]


def tensors(model: Any, layout: Layout) -> tuple[State, State]:
    """The checkpoint of a model, and the same with the numbers that its weights stand for."""
    state, plain = stored(model), stored(model)
    for name in linears(model, layout):
        found = quantise(state[f"{name}.weight"], layout)
        state[f"{name}.weight"], plain[f"{name}.weight"] = found.numbers, found.values
        shape = [n for n in found.scale.shape if n > 1] if layout.flat else found.scale.shape
        state[f"{name}.{layout.scale_name}"] = found.scale.reshape(shape)
        if found.zero_point is not None:
            state[f"{name}.weight_zero_point"] = found.zero_point.reshape(shape)
    return state, plain


def write_quantised(directory: Path, model: Any, layout: Layout, **config: Any) -> State:
    """A directory of one safetensors file. Returns the numbers that it stands for."""
    state, plain = tensors(model, layout)
    write(directory, model, state, quantization_config=layout.config(), **config)
    generation = model.generation_config.to_json_string()
    (directory / "generation_config.json").write_text(generation)
    return plain


@cache
def theirs(name: str) -> Any:
    """The transformers model of a family; tests leave it as it is."""
    return FAMILIES[name].model()


@cache
def loaded_plain(name: str, layout: str) -> Loaded:
    """A model in memory with the numbers that the layout makes of its weights."""
    model = FAMILIES[name].model()
    model.load_state_dict(tensors(model, LAYOUTS[layout])[1], strict=False)
    return load(model)


def assert_equal(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
