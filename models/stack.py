"""A stack, encoder or decoder, in plain torch: embedding, layers, norm. Shapes as in blocks.py."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.attention import CrossAttention, SelfAttention
from decoding.models.blocks import Dropout, FeedForward, norm
from decoding.models.positions import Places, bias_of, position_bias, rotary_frequencies
from decoding.models.spec import StackSpec


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
    """Self-attention, cross-attention where there is a `memory` (its width), feed-forward; or, in
    parallel, x + self-attention(x) + feed-forward(x), each through its norm or both through one."""

    def __init__(self, spec: StackSpec, layer: int, memory: int | None, dropout: Dropout) -> None:
        super().__init__()
        self.parallel, self.shared_norm = spec.parallel, spec.shared_norm
        self.self_attention = SelfAttention(spec, layer, dropout)
        self.cross_attention = (
            None if memory is None else CrossAttention(spec, memory, layer, dropout)
        )
        self.feed_forward = FeedForward(spec, dropout)

    def forward(
        self,
        x: Tensor,
        places: Places,
        memory: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        y: Tensor
        if self.parallel:
            normed = self.self_attention.norm(x)
            fed = normed if self.shared_norm else self.feed_forward.norm(x)
            y = x + self.self_attention.change(normed, places) + self.feed_forward.change(fed)
            return y
        x = self.self_attention(x, places)
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
        self.rotary = (
            None
            if spec.rotary is None
            else nn.Parameter(rotary_frequencies(spec.rotary.size), requires_grad=False)
        )
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
        weight = self.position_bias
        places = Places(
            position,
            mask,
            angles=None if self.rotary is None else position[..., None] * self.rotary,
            bias=None if weight is None else bias_of(self.spec, weight, position),
        )
        for layer in self.layers:
            x = layer(x, places, memory, memory_mask)
        y: Tensor = self.norm(x)
        return y
