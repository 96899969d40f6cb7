"""Blocks of layers in plain torch, on padded batches: each adds to its input.

Parameters carry the canonical names, so a module's state dict is what weights.py packs. Shapes:
B sentences, T tokens, S source tokens, N heads, D head size, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.spec import StackSpec
from decoding.models.weights.shapes import Biases

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class Dropout:
    """Dropout rates: of a block's or embedding's output, of attention, inside feed-forward."""

    block: float = 0.0
    attention: float = 0.0
    activation: float = 0.0


def norm(spec: StackSpec, size: int | None = None) -> nn.Module:
    """The spec's norm. size: of the normalised axis; None: hidden."""
    kind = nn.RMSNorm if spec.rms else nn.LayerNorm
    return kind(spec.hidden if size is None else size, spec.eps)


class Block(nn.Module):
    """x + compute(norm(x)), or norm(x + compute(x)) as in Vaswani et al. 2017."""

    compute: Callable[..., Tensor]

    def __init__(self, spec: StackSpec, dropout: Dropout) -> None:
        super().__init__()
        self.pre_norm = spec.pre_norm
        self.norm = norm(spec)
        self.post_norm = norm(spec) if spec.post_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout.block)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        """x: [B, T, H]; context as `compute` takes it. Returns [B, T, H]."""
        y: Tensor
        if self.pre_norm:
            y = x + self.change(self.norm(x), *context)
        else:
            y = self.norm(x + self.change(x, *context))
        return y

    def change(self, x: Tensor, *context: Any) -> Tensor:
        """The term that the block adds, of x after its norm; arguments as above."""
        y: Tensor = self.dropout(self.post_norm(self.compute(x, *context)))
        return y


class FeedForward(Block):
    """down(activation(up x)), or gated (Shazeer 2020) down(activation(gate x) * up x)."""

    def __init__(self, spec: StackSpec, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, dropout)
        ffn = spec.sizes(layer).ffn
        if spec.parallel and spec.shared_norm:
            self.norm = nn.Identity()
        self.activation = ACTIVATION[spec.activation]
        self.activation_dropout = nn.Dropout(dropout.activation)
        self.gated = spec.gated
        self.up = nn.Linear(spec.hidden, 2 * ffn if spec.gated else ffn)
        self.down = nn.Linear(ffn, spec.hidden)

    def compute(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, up = self.up(x).chunk(2, -1)
            inner = self.activation(gate) * up
        else:
            inner = self.activation(self.up(x))
        y: Tensor = self.down(self.activation_dropout(inner))
        return y


def keep_biases(model: nn.Module, biases: Biases) -> None:
    """Removes, in place, the biases of products and layer norms that the model lacks."""
    for name, part in model.named_modules():
        if isinstance(part, (nn.Linear, nn.LayerNorm)) and not biases(name):
            part.bias = None  # type: ignore[assignment]


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap); 0: the logits."""
    return cap * torch.tanh(logits / cap) if cap else logits


def initialise_linear(model: nn.Module) -> None:
    """Glorot-uniform weights and zero biases (Glorot & Bengio 2010), in place.

    Stacked projections are drawn one by one: their fans are those of each part.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            parts = {"qkv": 3, "kv": 2}.get(name.rpartition(".")[2], 1)
            for part in module.weight.chunk(parts):
                nn.init.xavier_uniform_(part)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
