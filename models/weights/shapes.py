"""The canonical names of a model's weights, and their shapes.

They are those of the state dicts of our modules (models/torch), in the same order, without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from decoding.models.spec import EncoderSpec, ModelSpec, StackSpec

# Whether the product or norm of a name ("decoder.layers.0.self_attention.qkv") adds a bias.
Biases = Callable[[str], bool]
Shape = tuple[int, ...]
Shapes = Iterator[tuple[str, Shape]]


def all_but_output(name: str) -> bool:
    return name != "output"


def shapes(
    spec: ModelSpec | EncoderSpec, biases: Biases = all_but_output
) -> dict[str, tuple[int, ...]]:
    """biases: which products and norms have one."""
    return dict(Names(biases).of_model(spec))


class Names:
    """The weights of each part of a model, whose name is `name`."""

    def __init__(self, biases: Biases) -> None:
        self._biases = biases

    def of_model(self, spec: ModelSpec | EncoderSpec) -> Shapes:
        if spec.encoder is not None:
            yield from self._stack("encoder", spec.encoder)
        if isinstance(spec, EncoderSpec):
            if spec.pooler:
                yield from self._linear("pooler", spec.encoder.hidden, spec.encoder.hidden)
            return
        memory = None if spec.encoder is None else spec.encoder.hidden
        yield from self._stack("decoder", spec.decoder, memory)
        yield from self._linear("output", len(spec.decoder.tokens), spec.decoder.hidden)

    def _stack(self, name: str, spec: StackSpec, memory: int | None = None) -> Shapes:
        """memory: the width of what cross-attention reads."""
        if spec.rotary is not None:
            yield f"{name}.rotary", (spec.rotary.tables, spec.rotary.size // 2)
        if spec.position_bias != "none":
            yield f"{name}.position_bias", position_bias(spec)
        yield f"{name}.embed.tokens", (len(spec.tokens), spec.hidden)
        if spec.position_table:
            yield f"{name}.embed.positions", (spec.types * spec.positions, spec.hidden)
        if spec.embed_norm:
            yield from self._norm(f"{name}.embed.norm", spec)
        for layer in range(spec.layers):
            yield from self._layer(f"{name}.layers.{layer}", spec, layer, memory)
        if spec.final_norm:
            yield from self._norm(f"{name}.norm", spec)

    def _layer(self, name: str, spec: StackSpec, layer: int, memory: int | None) -> Shapes:
        if spec.convolution is None:
            yield from self._self_attention(f"{name}.self_attention", spec, layer)
        else:
            yield from self._convolution(f"{name}.convolution", spec, layer)
        if memory is not None:
            yield from self._cross_attention(f"{name}.cross_attention", spec, layer, memory)
        yield from self._feed_forward(f"{name}.feed_forward", spec, layer)

    def _self_attention(self, name: str, spec: StackSpec, layer: int) -> Shapes:
        sizes = spec.sizes(layer)
        yield from self._norms(name, spec)
        yield from self._linear(f"{name}.out", spec.hidden, sizes.heads * spec.head_dim)
        rows = (sizes.heads + 2 * sizes.kv_heads) * spec.head_dim
        yield from self._linear(f"{name}.qkv", rows, spec.hidden)
        if spec.head_norm:
            yield f"{name}.q_norm.weight", (spec.head_dim,)
            yield f"{name}.k_norm.weight", (spec.head_dim,)

    def _cross_attention(self, name: str, spec: StackSpec, layer: int, memory: int) -> Shapes:
        sizes = spec.sizes(layer)
        yield from self._norms(name, spec)
        yield from self._linear(f"{name}.out", spec.hidden, sizes.heads * spec.head_dim)
        yield from self._linear(f"{name}.q", sizes.heads * spec.head_dim, spec.hidden)
        yield from self._linear(f"{name}.kv", 2 * sizes.kv_heads * spec.head_dim, memory)

    def _convolution(self, name: str, spec: StackSpec, layer: int) -> Shapes:
        assert spec.convolution is not None
        heads, size = spec.sizes(layer).heads, spec.convolution.kernel_sizes[layer]
        inner, parts = heads * spec.head_dim, 2 if spec.convolution.gated else 1
        if not spec.convolution.dynamic:
            yield f"{name}.kernel", (heads, size)
        yield from self._norms(name, spec)
        yield from self._linear(f"{name}.input", parts * inner, spec.hidden)
        if spec.convolution.dynamic:
            yield f"{name}.kernel.weight", (heads * size, inner)
        yield from self._linear(f"{name}.out", spec.hidden, inner)

    def _feed_forward(self, name: str, spec: StackSpec, layer: int) -> Shapes:
        ffn = spec.sizes(layer).ffn
        yield from self._norms(name, spec, first=not (spec.parallel and spec.shared_norm))
        yield from self._linear(f"{name}.up", 2 * ffn if spec.gated else ffn, spec.hidden)
        yield from self._linear(f"{name}.down", spec.hidden, ffn)

    def _norms(self, name: str, spec: StackSpec, *, first: bool = True) -> Shapes:
        """Those of a block. first: whether it has one of its own at all."""
        if first:
            yield from self._norm(f"{name}.norm", spec)
        if spec.post_norm:
            yield from self._norm(f"{name}.post_norm", spec)

    def _norm(self, name: str, spec: StackSpec) -> Shapes:
        yield f"{name}.weight", (spec.hidden,)
        if not spec.rms and self._biases(name):
            yield f"{name}.bias", (spec.hidden,)

    def _linear(self, name: str, outputs: int, inputs: int) -> Shapes:
        yield f"{name}.weight", (outputs, inputs)
        if self._biases(name):
            yield f"{name}.bias", (outputs,)


def position_bias(spec: StackSpec) -> Shape:
    heads = spec.sizes(0).heads
    if spec.position_bias == "alibi":
        return (heads,)
    layers = (spec.layers,) if spec.bias_by_layer else ()
    return (*layers, heads, 2 * spec.reach + 1)
