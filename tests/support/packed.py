"""Weights as the engine takes them, as tensors; linear ones for the tests of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoding import _kernels as kernels
from decoding.binding import engine_packer
from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights import placed
from decoding.models.weights.dtypes import as_tensor, name_of
from decoding.models.weights.lazy import Weight
from decoding.models.weights.panels import PANEL, Packer, panel_shape

STEPS = 127  # of int8 to either side of 0
KINDS = [torch.float32, torch.bfloat16, torch.int8]


def pack(
    state: Mapping[str, Weight],
    spec: ModelSpec | EncoderSpec,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Tensors in the CPU's memory, as the engine of `device` takes them."""
    packed = placed.pack(state, spec, engine_packer(threads=2), device, name_of(dtype))
    return {name: as_tensor(numbers) for name, numbers in packed.items()}


@dataclass
class Packed:
    """A weight of N outputs and K inputs."""

    panels: Tensor
    scale: Tensor | None  # with sums in int8
    sums: Tensor | None
    outputs: int
    inputs: int

    def scratch(self, rows: int) -> Tensor:
        """Full of NaN, in bfloat16 and float32."""
        return torch.full((kernels.linear_scratch(rows, self.inputs),), 255, dtype=torch.uint8)


def packed(weight: Tensor, kind: torch.dtype) -> Packed:
    """weight: float32 [N, K]."""
    scale = sums = None
    if kind == torch.int8:
        scale, sums = torch.empty(len(weight)), torch.empty(len(weight), dtype=torch.int32)
    panels = torch.empty(panel_shape(weight.shape[0], weight.shape[1], name_of(kind)), dtype=kind)
    fill_panels(panels, weight, 0, scale, sums)
    return Packed(panels, scale, sums, weight.shape[0], weight.shape[1])


# What the engine's functions of weights must give (models/weights/panels.py), in torch.


def is_finite(tensor: Tensor) -> bool:
    return bool(tensor.float().isfinite().all())


class Quantised(NamedTuple):
    """W[n, k] ~ scale[n] * numbers[n, k]."""

    numbers: Tensor  # int8 [N, K], -127 to 127
    scale: Tensor  # float32 [N]
    sums: Tensor  # int32 [N], of numbers over k


def quantise(weight: Tensor) -> Quantised:
    """weight: [N, K], finite. Symmetric, with a scale for each output: its largest is 127.

    scale[n] = max_k |W[n, k]| / 127, or 1 where that is 0; ties round to the even number.
    """
    weight = weight.float()
    scale = weight.abs().amax(1) / STEPS
    scale[scale == 0] = 1
    numbers = (weight / scale[:, None]).round_().clamp_(-STEPS, STEPS).to(torch.int8)
    return Quantised(numbers, scale, numbers.sum(1, dtype=torch.int32))


def squares(weight: Tensor) -> tuple[float, float]:
    """weight: [N, K]. The sums of the squares of int8's steps, scale[n], and of the weight."""
    largest = [rows.abs().amax(1) for rows in torch.split(weight, PANEL)]
    steps = torch.cat(largest).double() / STEPS
    return float(steps @ steps), float(weight.double().norm() ** 2)


def int8_rows(numbers: Tensor) -> Tensor:
    """int8 [N, K] as a GPU has them: [N, 16 ceil(K / 16)], of every 16 inputs the first eight and
    the last in turns, two at a time."""
    padded = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % 16))
    halves = padded.view(len(padded), -1, 2, 4, 2)
    return halves.transpose(2, 3).reshape(padded.shape).contiguous()


def e4m3_rows(numbers: Tensor) -> Tensor:
    """The bytes of e4m3 [N, K] as a GPU has them, uint8."""
    return int8_rows(numbers.view(torch.int8)).view(torch.uint8)


def fill_panels(
    panels: Tensor,
    weight: Tensor,
    first: int,
    scale: Tensor | None = None,
    sums: Tensor | None = None,
) -> bool:
    """Writes rows of a weight, float [n, K], in the panels' type as the outputs from `first` on,
    and zeros behind them to the end of their panel: [ceil(N / 64), ceil(K / g), 64 g]. Parts of a
    weight come in order. Returns whether all numbers are finite, in both types.

    scale, sums: [N], take what belongs to int8 (Quantised).
    """
    if scale is not None and sums is not None:
        end = first + len(weight)
        numbers, scale[first:end], sums[first:end] = quantise(weight)
    else:
        numbers = weight.to(panels.dtype)
    lines, group = panels.shape[1], panels.shape[2] // PANEL
    padded = torch.nn.functional.pad(numbers, (0, lines * group - weight.shape[1]))
    outputs = torch.arange(first, first + len(weight))
    places = panels.view(-1, lines, PANEL, group)
    places[outputs // PANEL, :, outputs % PANEL] = padded.view(-1, lines, group)
    behind = (first + len(weight)) % PANEL
    if behind:
        places[(first + len(weight)) // PANEL, :, behind:] = 0
    return is_finite(weight if numbers.dtype == torch.int8 else numbers)


def convert(to: Tensor, weight: Tensor) -> bool:
    """Writes a weight, float and contiguous, in the type of `to`, float32 or bfloat16 and of its
    shape. Returns whether all numbers are finite, in both types."""
    numbers = weight.to(to.dtype)
    to.copy_(numbers)
    return is_finite(numbers)


def interleave(rows: Any, panels: Any, inputs: int) -> None:
    """Writes int8 panels as the rows of a GPU."""
    rows, panels = torch.as_tensor(rows), torch.as_tensor(panels)
    lines = panels.view(len(panels), -1, PANEL, 4).transpose(1, 2)
    rows.copy_(int8_rows(lines.flatten(0, 1).flatten(1)[: len(rows), :inputs]))


PACKER: Packer = Packer(fill_panels, squares, convert, interleave)  # type: ignore[arg-type]  # of tensors
