"""The blocks all families share, in plain torch, on padded batches.

Parameters carry the canonical names, so a module's state dict is what weights.py packs. Shapes:
B sentences, T tokens, S source tokens, N heads, D head size, H hidden, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.spec import StackSpec

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class Dropout:
    """Rates in training: of what a block or embedding adds, of attention, inside feed-forward."""

    block: float = 0.0
    attention: float = 0.0
    activation: float = 0.0


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Marian's position table, float32 [positions, hidden]: all sines, then all cosines.

    Vaswani et al. 2017 interleave the two; the frequencies are the same.
    """
    sines = (hidden + 1) // 2
    channel = torch.arange(hidden, dtype=torch.float64)
    frequency = 10000.0 ** (-2 * torch.where(channel < sines, channel, channel - sines) / hidden)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return torch.where(channel < sines, angle.sin(), angle.cos()).float()


def fairseq_sinusoids(positions: int, hidden: int, first: int) -> Tensor:
    """fairseq's position table, float32 [positions, hidden]: all sines, then all cosines.

    Its wave lengths reach 10000 * 2 pi, as in tensor2tensor, not only close to it as above. first:
    the position that its first row is for, which in fairseq is the pad token's id + 1.
    """
    half = hidden // 2
    # In float32, as there: the angles' rounding errors are part of published models.
    frequency = (torch.arange(half).float() * -(math.log(10000) / (half - 1))).exp()
    angle = torch.arange(first, first + positions).float()[:, None] * frequency
    return F.pad(torch.cat([angle.sin(), angle.cos()], 1), (0, hidden % 2))


class Embedding(nn.Module):
    """norm?(scale * tokens[id] + positions[position])."""

    def __init__(
        self,
        spec: StackSpec,
        tokens: nn.Parameter,
        positions: nn.Parameter,
        dropout: Dropout,
    ) -> None:
        super().__init__()
        self.scale = spec.embed_scale
        self.tokens = tokens  # [V, H]
        self.positions = positions  # [positions, H]
        self.norm = nn.LayerNorm(spec.hidden, spec.eps) if spec.embed_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout.block)

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        """ids: [B, T]; position: [T] or [B, T]. Returns [B, T, H]."""
        tokens = F.embedding(ids, self.tokens) * self.scale
        embedded: Tensor = self.dropout(self.norm(tokens + F.embedding(position, self.positions)))
        return embedded


class Block(nn.Module):
    """x + compute(norm(x)), or norm(x + compute(x)) as in Vaswani et al. 2017."""

    compute: Callable[..., Tensor]

    def __init__(self, spec: StackSpec, dropout: Dropout) -> None:
        super().__init__()
        self.pre_norm = spec.pre_norm
        self.norm = nn.LayerNorm(spec.hidden, spec.eps)
        self.dropout = nn.Dropout(dropout.block)

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        """x: [B, T, H]; context as `compute` takes it. Returns [B, T, H]."""
        y: Tensor
        if self.pre_norm:
            y = x + self.dropout(self.compute(self.norm(x), *context))
        else:
            y = self.norm(x + self.dropout(self.compute(x, *context)))
        return y


class Attention(Block):
    """What self- and cross-attention share: the product, and the way out of it."""

    def __init__(self, spec: StackSpec, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, dropout)
        self.heads = spec.heads
        self.scale = spec.attention_scale[layer]
        self.attention_dropout = dropout.attention
        self.out = nn.Linear(spec.heads * spec.head_dim, spec.hidden)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q: [B, T, N, D]; k, v: [B, S, N, D]; mask: bool, True where a key is seen, broadcast to
        [B, N, T, S], None for causal. Returns [B, T, H]."""
        heads = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=self.attention_dropout if self.training else 0.0,
            scale=self.scale,
        )
        y: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return y


class SelfAttention(Attention):
    def __init__(self, spec: StackSpec, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, layer, dropout)
        self.qkv = nn.Linear(spec.hidden, 3 * spec.heads * spec.head_dim)

    def compute(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return self.attend(q, k, v, mask)


class CrossAttention(Attention):
    def __init__(self, spec: StackSpec, memory: int, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, layer, dropout)
        width = spec.heads * spec.head_dim
        self.q = nn.Linear(spec.hidden, width)
        self.kv = nn.Linear(memory, 2 * width)

    def compute(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """memory: [B, S, H of the encoder]."""
        q = self.q(x).unflatten(-1, (self.heads, -1))
        k, v = self.kv(memory).unflatten(-1, (2, self.heads, -1)).unbind(2)
        return self.attend(q, k, v, mask)


class FeedForward(Block):
    def __init__(self, spec: StackSpec, dropout: Dropout) -> None:
        super().__init__(spec, dropout)
        self.activation = ACTIVATION[spec.activation]
        self.activation_dropout = nn.Dropout(dropout.activation)
        self.up = nn.Linear(spec.hidden, spec.ffn)
        self.down = nn.Linear(spec.ffn, spec.hidden)

    def compute(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation_dropout(self.activation(self.up(x))))
        return y


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a `memory` (its width), feed-forward."""

    def __init__(self, spec: StackSpec, layer: int, memory: int | None, dropout: Dropout) -> None:
        super().__init__()
        self.self_attention = SelfAttention(spec, layer, dropout)
        self.cross_attention = (
            None if memory is None else CrossAttention(spec, memory, layer, dropout)
        )
        self.feed_forward = FeedForward(spec, dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        x = self.self_attention(x, mask)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, memory_mask)
        y: Tensor = self.feed_forward(x)
        return y


class Stack(nn.Module):
    """The embedding, the layers, and a norm where the model has one."""

    def __init__(
        self,
        spec: StackSpec,
        embed: Embedding,
        dropout: Dropout,
        memory: int | None = None,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(
            Layer(spec, layer, memory, dropout) for layer in range(spec.layers)
        )
        self.norm = nn.LayerNorm(spec.hidden, spec.eps) if spec.final_norm else nn.Identity()

    def forward(
        self,
        ids: Tensor,
        position: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """ids: [B, T]; position: [T] or [B, T]; memory: [B, S, H of the encoder]; masks as in
        `Attention.attend`. Returns [B, T, H]."""
        x = self.embed(ids, position)
        for layer in self.layers:
            x = layer(x, mask, memory, memory_mask)
        y: Tensor = self.norm(x)
        return y


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
