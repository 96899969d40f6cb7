"""Imports decoder-only models by a spec and a `Layout`, which gives each weight's stored name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from decoding.models.layouts.options import flag
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import LazyTensor, Quantised, Weight, computed, joined, moved
from decoding.models.weights.shapes import shapes

NAME = re.compile(
    r"(?P<stack>decoder\.(layers\.(?P<layer>\d+)\.)?)?(?P<part>.+?)(?P<kind>\.weight|\.bias)?"
)

# Tensors of files that are computed: causal masks, and frequencies of rotary positions.
IGNORED = re.compile(r".*\.(rotary_emb\.inv_freq|(attn|attention)\.(bias|masked_bias))")


@dataclass(frozen=True)
class Layout:
    """The differences between the families' files.

    base: what their names begin with, but for the output's; a file of the model without its output
    leaves it out. layers: what a layer's names begin with, then comes its number. parts: what each
    part was stored as; several are stacked. biases: products and norms that add one, by the last
    word of their canonical names. by_head: each head's query, key and value stand together.
    gain: what norms add to their stored weights.
    """

    base: str
    layers: str
    parts: Mapping[str, tuple[str, ...]]
    output: str = "lm_head"
    biases: frozenset[str] = frozenset()
    by_head: bool = False
    gain: float = 0.0


def convert(
    config: Mapping[str, Any],
    checkpoint: Checkpoint,
    spec: ModelSpec,
    layout: Layout,
    constants: Mapping[str, Array],
) -> tuple[ModelSpec, dict[str, Weight]]:
    """constants: weights that no file holds, by their canonical names.

    Raises ValueError that names a tensor that is missing, left over or of another shape.
    """
    (tokens,) = layout.parts["embed.tokens"]
    base = "" if f"{tokens}.weight" in checkpoint else layout.base
    tied = f"{layout.output}.weight" not in checkpoint and flag(config, "tie_word_embeddings")
    state: dict[str, Weight] = dict(constants)
    for name, shape in shapes(spec, lambda part: has_bias(layout, part)).items():
        if name not in state:
            held = "decoder.embed.tokens" if tied and name == "output.weight" else name
            sources = stored_names(held, layout, base)
            weight = taken(checkpoint, sources, shape, keys_of(name, spec.decoder))
            state[name] = as_we_store(name, weight, spec.decoder, layout)
    checkpoint.finish(lambda name: IGNORED.fullmatch(name) is not None)
    return spec, state


def has_bias(layout: Layout, part: str) -> bool:
    return part.rpartition(".")[2] in layout.biases


def stored_names(name: str, layout: Layout, base: str) -> list[str]:
    """The stored names of a canonical weight, in parts."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    kind = match["kind"] or ".weight"
    if match["stack"] is None:
        return [layout.output + kind]
    layer = "" if match["layer"] is None else f"{layout.layers}.{match['layer']}."
    return [f"{base}{layer}{part}{kind}" for part in layout.parts[match["part"]]]


def keys_of(name: str, spec: StackSpec) -> int:
    """Rows of the keys in a weight's layer."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    return spec.sizes(int(match["layer"] or 0)).kv_heads * spec.head_dim


def taken(
    checkpoint: Checkpoint, sources: list[str], shape: tuple[int, ...], keys: int
) -> LazyTensor:
    """The parts of a weight, stacked: gate and up, or queries, keys and values."""
    if len(sources) == 1:
        return checkpoint.take(sources[0], *shape)
    rows = [shape[0] // 2] * 2 if len(sources) == 2 else [shape[0] - 2 * keys, keys, keys]
    return joined(
        *(
            checkpoint.take(source, part, *shape[1:])
            for source, part in zip(sources, rows, strict=True)
        )
    )


def as_we_store(name: str, weight: LazyTensor, spec: StackSpec, layout: Layout) -> LazyTensor:
    if layout.by_head and ".qkv." in name:
        heads, shape = (-1, 3, spec.head_dim, *weight.shape[1:]), weight.shape
        by_kind = moved(
            shape, lambda rows: rows.reshape(heads).swapaxes(0, 1).reshape(shape), weight
        )
        kept = weight.quantised
        if kept is None:
            return by_kind
        parts = (as_we_store(name, each, spec, layout) for each in (kept.numbers, kept.scale))
        return replace(by_kind, quantised=Quantised(*parts))
    if layout.gain and name.endswith("norm.weight"):
        return computed(weight.shape, lambda stored: stored + layout.gain, weight)
    return weight
