"""Linear weights as the CPU's kernels take them, for the tests of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding import _kernels as kernels
from decoding.models.weights.panels import fill_panels, panel_shape

KINDS = [torch.float32, torch.bfloat16, torch.int8]


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
    panels = torch.empty(panel_shape(weight.shape[0], weight.shape[1], kind), dtype=kind)
    fill_panels(panels, weight, 0, scale, sums)
    return Packed(panels, scale, sums, weight.shape[0], weight.shape[1])
