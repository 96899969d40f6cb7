"""A model as plain numbers: what the engine needs to know of an architecture.

The engine's twin is `csrc/core/spec.h`, which reads these fields by name.
"""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class StackSpec:
    """One stack of Transformer layers: the encoder or the decoder."""

    layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn: int
    vocab: int  # rows of the token table
    positions: int  # rows of the position table
    activation: str  # one of ACTIVATIONS
    embed_scale: float  # multiplies the token's row
    embed_norm: bool  # a layer norm behind the embedding
    pre_norm: bool  # norms before each block, else behind its residual
    final_norm: bool  # a norm behind the last layer
    eps: float  # of every norm
    attention_scale: tuple[float, ...]  # [layers], multiplies q k^T


@dataclass(frozen=True)
class ModelSpec:
    """An encoder-decoder, or a decoder alone (`encoder` is None)."""

    encoder: StackSpec | None
    decoder: StackSpec
