"""A stack, encoder or decoder, in plain torch: embedding, layers, norm. Shapes as in blocks.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.layouts.positions import rotary_frequencies
from decoding.models.spec import StackSpec
from decoding.models.torch.attention import CrossAttention, SelfAttention
from decoding.models.torch.blocks import Dropout, FeedForward, norm
from decoding.models.torch.convolution import Convolution
from decoding.models.torch.positions import Places, angles_of, biases_of, position_bias


class Embedding(nn.Module):
    """norm?(scale * tokens[id] + positions[position])."""

    def __init__(
        self,
        spec: StackSpec,
        tokens: nn.Parameter,
        positions: nn.Parameter | None,
        dropout: Dropout,
    ) -> None:
        super().__init__()
        self.scale = spec.embed_scale
        self.tokens = tokens  # [V, H]
        self.positions = positions  # [positions, H]; None: the stack has no position table
        self.norm = norm(spec) if spec.embed_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout.block)

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        """ids: [B, T]; position: [T] or [B, T]. Returns [B, T, H]."""
        x = F.embedding(ids, self.tokens) * self.scale
        if self.positions is not None:
            x = x + F.embedding(position, self.positions)
        embedded: Tensor = self.dropout(self.norm(x))
        return embedded


class Layer(nn.Module):
    """Self-attention or a convolution, cross-attention where there is a `memory` (its width),
    feed-forward; or, in parallel, x + self-attention(x) + feed-forward(x), each through its norm or
    both through one."""

    def __init__(self, spec: StackSpec, layer: int, memory: int | None, dropout: Dropout) -> None:
        super().__init__()
        self.parallel, self.shared_norm = spec.parallel, spec.shared_norm
        self.self_attention: SelfAttention | None = None
        self.convolution: Convolution | None = None
        if spec.convolution is None:
            self.self_attention = SelfAttention(spec, layer, dropout)
        else:
            self.convolution = Convolution(spec, layer, dropout)
        self.cross_attention = (
            None if memory is None else CrossAttention(spec, memory, layer, dropout)
        )
        self.feed_forward = FeedForward(spec, layer, dropout)

    def forward(
        self,
        x: Tensor,
        places: Places,
        memory: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        y: Tensor
        first = self.self_attention or self.convolution
        assert first is not None
        if self.parallel:
            normed = first.norm(x)
            fed = normed if self.shared_norm else self.feed_forward.norm(x)
            y = x + first.change(normed, places) + self.feed_forward.change(fed)
            return y
        x = first(x, places)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, memory_mask)
        y = self.feed_forward(x)
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
        self.spec = spec
        self.embed = embed
        self.rotary = None
        if spec.rotary is not None:
            frequencies = torch.empty(spec.rotary.tables, spec.rotary.size // 2)
            frequencies.copy_(torch.from_numpy(rotary_frequencies(spec.rotary.size)))
            self.rotary = nn.Parameter(frequencies, requires_grad=False)
        self.position_bias = position_bias(spec)
        self.layers = nn.ModuleList(
            Layer(spec, layer, memory, dropout) for layer in range(spec.layers)
        )
        self.norm = norm(spec) if spec.final_norm else nn.Identity()

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
        rotary, weight = self.spec.rotary, self.rotary
        places = Places(
            position,
            mask,
            angles=None
            if rotary is None or weight is None
            else angles_of(weight, position, rotary),
            biases=biases_of(self.spec, self.position_bias, position),
        )
        for layer in self.layers:
            x = layer(x, places, memory, memory_mask)
        y: Tensor = self.norm(x)
        return y
