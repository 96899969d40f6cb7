"""A model's architecture as plain numbers, for the engine.

The engine's twin is `csrc/core/spec.h`, which reads these fields by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
POSITION_BIASES = ("none", "alibi", "relative")
MOST_LAYERS = 1000  # of a stack


@dataclass(frozen=True)
class RotarySpec:
    """Rotary positions (Su et al. 2021). The weight `<stack>.rotary`, float32 [tables, size / 2],
    holds the angle by which each pair rotates from a position to the next."""

    size: int  # numbers of a head that are rotated, from its first on
    interleaved: bool = False  # pairs are neighbours; else i and i + size / 2
    factor: float = 1.0  # multiplies sine and cosine
    tables: int = 1  # more: a token's angles depend on its row's length when it is read
    original: int = 0  # the longest row that has the first table; each longer one has its own, up
    # to the last
    settled: bool = False  # a row that has begun with the first table may not outgrow it


@dataclass(frozen=True)
class ConvolutionSpec:
    """Depthwise convolution instead of self-attention (Wu et al. 2019)."""

    # [layers], tokens that a token sees: those up to it in a decoder, those around it in an encoder
    kernel_sizes: tuple[int, ...]
    dynamic: bool = False  # each token makes its kernel: softmax of a product; else it is a weight
    gated: bool = True  # what they multiply is sigmoid(gate x) * input x; `input` holds both, gate
    # first


@dataclass(frozen=True)
class LayerSizes:
    """The sizes that may differ from layer to layer."""

    heads: int
    kv_heads: int
    ffn: int


@dataclass(frozen=True)
class StackSpec:
    """One stack of Transformer layers: the encoder or the decoder. Options that few models use have
    defaults. heads, kv_heads and ffn are numbers of every layer, or [layers], of each."""

    layers: int
    hidden: int
    heads: int | tuple[int, ...]
    head_dim: int
    ffn: int | tuple[int, ...]
    vocab: int  # rows of the token table
    positions: int  # most tokens of a row; rows of the position table, where there is one
    activation: str  # one of ACTIVATIONS
    embed_scale: float  # multiplies the token's row
    embed_norm: bool  # a norm after the embedding
    pre_norm: bool  # norms before each block, else after its residual
    final_norm: bool  # a norm after the last layer
    eps: float  # of every norm
    attention_scale: tuple[float, ...]  # [layers], multiplies q k^T
    kv_heads: int | tuple[int, ...] = 0  # of keys and values, a divisor of heads; 0: as many
    position_table: bool = True  # learned or sinusoidal positions are added to the tokens
    types: int = 1  # kinds of tokens (BERT's segments): the position table holds `positions` rows
    # for each, so that nothing else may ask for positions
    rms: bool = False  # norms are RMS norms (Zhang & Sennrich 2019)
    gated: bool = False  # feed-forward: activation(gate x) * up x; `up` holds both, gate first
    parallel: bool = False  # feed-forward reads what attention reads
    shared_norm: bool = False  # with parallel: through attention's norm
    post_norm: bool = False  # norms after each block too, before its residual is added (Gemma 2)
    head_norm: bool = False  # RMS norms of each head's queries and keys (Qwen3)
    rotary: RotarySpec | None = None
    position_bias: str = "none"  # one of POSITION_BIASES; its numbers are `<stack>.position_bias`:
    # alibi: slopes [heads]; relative: a table [heads, 2 * reach + 1] by query's less key's position
    # with bias_by_layer [layers, heads, 2 * reach + 1], each layer has one (UMT5)
    bias_by_layer: bool = False
    reach: int = 0  # relative: the largest distance of the table, in each direction
    attention_cap: float = 0.0  # 0: none; else scores are cap * tanh(score / cap)
    window: tuple[int, ...] = ()  # [layers], keys that a query sees, 0: all; empty: all everywhere
    convolution: ConvolutionSpec | None = None  # None: self-attention
    int8_activations: bool = False  # on a GPU, beside int8 weights: W8A8 where rows are many

    def sizes(self, layer: int) -> LayerSizes:
        def of(number: int | tuple[int, ...]) -> int:
            return number[layer] if isinstance(number, tuple) else number

        heads = of(self.heads)
        return LayerSizes(heads, of(self.kv_heads) or heads, of(self.ffn))

    @property
    def tokens(self) -> range:
        """Those whose rows the token table and the output projection have: all. Of a model that is
        split those of a rank (weights/shards.py)."""
        return range(self.vocab)


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
    pad: int | None = None  # a token without a position of its own: it has 0, and the others are
    # counted from 1 on (RoBERTa); None: a token's position is its column

    @property
    def longest(self) -> int:
        """The most tokens of a row, not counting those without a position."""
        return self.encoder.positions - (self.pad is not None)


def with_int8_activations(spec: ModelSpec | EncoderSpec) -> ModelSpec | EncoderSpec:
    """The same, computed so."""
    stacks = {
        name: replace(stack, int8_activations=True)
        for name in ("encoder", "decoder")
        if (stack := getattr(spec, name, None)) is not None
    }
    return replace(spec, **stacks)
