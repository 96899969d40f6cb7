"""Depthwise convolution in the place of self-attention, in plain torch.

Shapes as in blocks.py; K is the size of the kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.spec import StackSpec
from decoding.models.torch.blocks import Block, Dropout
from decoding.models.torch.positions import Places


class Convolution(Block):
    """out(y), where y[t] is the sum of a head's kernel times the tokens around t, of input(x) or,
    as a gated linear unit, sigmoid(gate) * input (Wu et al. 2019)."""

    def __init__(self, spec: StackSpec, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, dropout)
        assert spec.convolution is not None
        self.heads, self.size = spec.sizes(layer).heads, spec.convolution.kernel_sizes[layer]
        self.gated = spec.convolution.gated
        self.kernel_dropout = dropout.attention
        inner = self.heads * spec.head_dim
        self.input = nn.Linear(spec.hidden, 2 * inner if self.gated else inner)
        self.kernel: nn.Linear | nn.Parameter
        if spec.convolution.dynamic:
            self.kernel = nn.Linear(inner, self.heads * self.size, bias=False)
        else:
            self.kernel = nn.Parameter(torch.full((self.heads, self.size), 1 / self.size))
        self.out = nn.Linear(inner, spec.hidden)

    def compute(self, x: Tensor, places: Places) -> Tensor:
        """places: without a mask tokens see those before them; else those on both sides, of which
        masked ones, [B, 1, 1, T], count as zeros."""
        x = self.input(x)
        if self.gated:
            gate, x = x.chunk(2, -1)
            x = gate.sigmoid() * x
        left = self.size - 1
        if places.mask is not None:
            x = x.masked_fill(~places.mask[:, 0, 0, :, None], 0.0)
            left = self.size // 2
        padded = F.pad(x, (0, 0, left, self.size - 1 - left))
        windows = padded.unfold(1, self.size, 1)
        windows = windows.view(*x.shape[:2], self.heads, -1, self.size)  # [B, T, N, D, K]
        kernel = F.dropout(self.kernel_for(x), self.kernel_dropout if self.training else 0.0)
        y: Tensor = self.out((windows @ kernel[..., None]).squeeze(-1).flatten(2))
        return y

    def kernel_for(self, x: Tensor) -> Tensor:
        """[N, K], or of every token [B, T, N, K]."""
        if isinstance(self.kernel, nn.Parameter):
            return self.kernel
        scores: Tensor = self.kernel(x).unflatten(-1, (self.heads, -1))
        return scores.softmax(-1)
