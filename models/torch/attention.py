"""Self-attention and cross-attention in plain torch. Shapes as in blocks.py; Nkv heads of keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.spec import StackSpec
from decoding.models.torch.blocks import Block, Dropout, soft_cap
from decoding.models.torch.positions import Places, causal, rotated


class Attention(Block):
    """The shared part of self- and cross-attention: softmax(q k^T) v and the output projection."""

    def __init__(self, spec: StackSpec, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, dropout)
        sizes = spec.sizes(layer)
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        self.head_dim = spec.head_dim
        self.scale = spec.attention_scale[layer]
        self.attention_dropout = dropout.attention
        self.out = nn.Linear(self.heads * self.head_dim, spec.hidden)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None = None,
        cap: float = 0.0,
    ) -> Tensor:
        """q: [B, T, N, D]; k, v: [B, S, Nkv, D]; mask: bool, True where a key is seen, broadcast to
        [B, N, T, S], None for causal; cap: of the scores, 0: none; bias: added to them then.
        Returns [B, T, H]."""
        shared = self.heads // self.kv_heads
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if shared > 1:  # by 1 it would copy them all the same
            k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        dropout = self.attention_dropout if self.training else 0.0
        if bias is None and cap == 0:
            heads = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None,
                dropout_p=dropout,
                scale=self.scale,
            )
        else:
            scores = soft_cap(self.scale * (q @ k.transpose(2, 3)), cap)
            scores = scores if bias is None else scores + bias
            scores = scores.masked_fill(~(causal(scores) if mask is None else mask), -torch.inf)
            heads = F.dropout(scores.softmax(-1), dropout) @ v
        y: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return y


class SelfAttention(Attention):
    def __init__(self, spec: StackSpec, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, layer, dropout)
        self.rotary, self.cap = spec.rotary, spec.attention_cap
        self.layer = layer
        self.window = spec.window[layer] if spec.window else 0
        self.qkv = nn.Linear(spec.hidden, (self.heads + 2 * self.kv_heads) * self.head_dim)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if spec.head_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, spec.eps)
            self.k_norm = nn.RMSNorm(self.head_dim, spec.eps)

    def compute(self, x: Tensor, places: Places) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], 2)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary is not None and places.angles is not None:
            q, k = (rotated(part, places.angles, self.rotary) for part in (q, k))
        bias = places.biases[self.layer] if places.biases else None
        return self.attend(q, k, v, places.seen(self.window), bias, self.cap)


class CrossAttention(Attention):
    def __init__(self, spec: StackSpec, memory: int, layer: int, dropout: Dropout) -> None:
        super().__init__(spec, layer, dropout)
        self.q = nn.Linear(spec.hidden, self.heads * self.head_dim)
        self.kv = nn.Linear(memory, 2 * self.kv_heads * self.head_dim)

    def compute(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """memory: [B, S, H of the encoder]."""
        q = self.q(x).unflatten(-1, (-1, self.head_dim))
        k, v = self.kv(memory).unflatten(-1, (2, -1, self.head_dim)).unbind(2)
        return self.attend(q, k, v, mask)
