"""A model as plain numbers: what the engine needs to know of an architecture.

The engine's twin is `csrc/core/spec.h`, which reads these fields by name.
"""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
POSITION_BIASES = ("none", "alibi", "relative")


@dataclass(frozen=True)
class RotarySpec:
    """Rotary positions (Su et al. 2021). The weight `<stack>.rotary`, float32 [size / 2], holds the
    angle by which each pair turns from a position to the next."""

    size: int  # numbers of a head that turn, from its first on
    interleaved: bool = False  # pairs are neighbours; else i and i + size / 2
    factor: float = 1.0  # multiplies sine and cosine


@dataclass(frozen=True)
class StackSpec:
    """One stack of Transformer layers: the encoder or the decoder. What most models do without has
    a default."""

    layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn: int
    vocab: int  # rows of the token table
    positions: int  # most tokens of a row; rows of the position table, where there is one
    activation: str  # one of ACTIVATIONS
    embed_scale: float  # multiplies the token's row
    embed_norm: bool  # a norm behind the embedding
    pre_norm: bool  # norms before each block, else behind its residual
    final_norm: bool  # a norm behind the last layer
    eps: float  # of every norm
    attention_scale: tuple[float, ...]  # [layers], multiplies q k^T
    kv_heads: int = 0  # of keys and values, a divisor of heads; 0: as many
    position_table: bool = True  # learned or sinusoidal positions are added to the tokens
    types: int = 1  # kinds of tokens (BERT's segments): the position table holds `positions` rows
    # for each, so that nothing else may ask for positions
    rms: bool = False  # norms are RMS norms (Zhang & Sennrich 2019)
    gated: bool = False  # feed-forward: activation(gate x) * up x; `up` holds both, gate first
    parallel: bool = False  # feed-forward reads what attention reads
    shared_norm: bool = False  # with parallel: through attention's norm
    post_norm: bool = False  # norms behind each block too, before its residual is added (Gemma 2)
    head_norm: bool = False  # RMS norms of each head's queries and keys (Qwen3)
    rotary: RotarySpec | None = None
    position_bias: str = "none"  # one of POSITION_BIASES; its numbers are `<stack>.position_bias`:
    # alibi: slopes [heads]; relative: a table [heads, 2 * reach + 1] by query's less key's position
    reach: int = 0  # relative: distances that the table tells apart, in each direction
    attention_cap: float = 0.0  # 0: none; else scores are cap * tanh(score / cap)
    window: tuple[int, ...] = ()  # [layers], keys that a query sees, 0: all; empty: all everywhere


@dataclass(frozen=True)
class ModelSpec:
    """An encoder-decoder, or a decoder alone (`encoder` is None)."""

    encoder: StackSpec | None
    decoder: StackSpec
    logits_cap: float = 0.0  # 0: none; else logits are cap * tanh(logit / cap)


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder alone."""

    encoder: StackSpec
    pooler: bool = False  # tanh(W x + b) of each row's first token, as in BERT
