"""The roofline bound of a model's decoding step: the least time on a machine, from sizes alone.

A step moves every weight once, and the keys and values that are kept: of source or prompt once for
each sentence, of what was generated once for each row. Logits stay in cache. The encoder or prompt
is spread over the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.compare.results import Ceilings
from decoding.models import ModelSpec
from decoding.models.spec import StackSpec

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # bytes of a weight


@dataclass(frozen=True)
class Work:
    """bytes: bytes moved; flops: twice the multiply-adds."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class RooflineBound:
    """The work of a step, and the least seconds that it takes. bound_by: the longest of "memory",
    "arithmetic" and "launches" (dependent kernel launches). NaN and "" without ceilings."""

    work: Work
    seconds: float
    bound_by: str


def roofline_bound(
    spec: ModelSpec, given: Sequence[int], beams: int, length: int, ceilings: Ceilings, dtype: str
) -> RooflineBound:
    """The bound of a step of a call. given: tokens of each sentence's source or prompt. length: new
    tokens of each row.

    On a GPU no step is faster than its dependent launches, each of which waits for the one before.
    """
    step, once = work_of_step(spec, given, beams, length, dtype), work_before(spec, given, dtype)
    limits = {**seconds(step, ceilings), "launches": dependent_launches(spec) * ceilings.launch}
    known = not math.isnan(ceilings.bandwidth)
    bound = max(limits, key=lambda name: limits[name]) if known else ""
    total = limits.get(bound, math.nan) + max(seconds(once, ceilings).values()) / length
    work = Work(step.bytes + once.bytes / length, step.flops + once.flops / length)
    return RooflineBound(work, total, bound)


def seconds(work: Work, ceilings: Ceilings) -> dict[str, float]:
    return {
        "memory": work.bytes / ceilings.bandwidth,
        "arithmetic": work.flops / ceilings.flops,
    }


def work_of_step(
    spec: ModelSpec, given: Sequence[int], beams: int, length: int, dtype: str
) -> Work:
    """The decoder's work in a step, at the mean length of its rows."""
    stack, rows, width = spec.decoder, len(given) * beams, WIDTHS[dtype]
    weights, kept, looked = stack.vocab * stack.hidden, 0.0, 0.0
    for layer in range(stack.layers):
        weights += layer_weights(stack, layer)
        if spec.encoder is not None:
            weights += query_weights(stack, layer)  # its keys and values are there already
        for tokens in given:
            prompt = 0 if spec.encoder else tokens
            before, own = within(reach(stack, layer), prompt, (length + 1) / 2)
            numbers, adds = looked_at(stack, layer, before, beams * own, beams * (before + own))
            kept, looked = kept + numbers, looked + adds
            if spec.encoder is not None:
                numbers, adds = attended(stack, layer, tokens, beams * tokens)
                kept, looked = kept + numbers, looked + adds
    return Work(bytes=width * weights + max(2, width) * kept, flops=2 * weights * rows + 2 * looked)


def work_before(spec: ModelSpec, given: Sequence[int], dtype: str) -> Work:
    """The work before the steps: that of the encoder and of the keys and values that the decoder
    takes from it, or that of all but the last token of each prompt."""
    stack, tokens, seen, weights = spec.decoder, sum(given) - len(given), 0.5, 0
    if spec.encoder is not None:
        stack, tokens, seen = spec.encoder, sum(given), 1.0
        for layer in range(spec.decoder.layers):
            weights += 2 * spec.decoder.hidden * key_size(spec.decoder, layer)
    if tokens == 0:
        return Work(0.0, 0.0)
    looked = 0.0
    for layer in range(stack.layers):
        weights += layer_weights(stack, layer)
        pairs = sum(n * min(seen * n, reach(stack, layer)) for n in given)
        looked += looked_at(stack, layer, 0, 0, pairs)[1]
    return Work(bytes=WIDTHS[dtype] * weights, flops=2 * weights * tokens + 2 * looked)


def dependent_launches(spec: ModelSpec) -> int:
    """Kernels of a step that wait for one another: products of queries, keys and values, attention,
    output; the same with the source; the two of the feed-forward, which a parallel one runs beside
    attention's; and embedding, logits and selection."""
    layer = 3 + (0 if spec.decoder.parallel else 2) + (0 if spec.encoder is None else 3)
    return layer * spec.decoder.layers + 3


def looked_at(
    stack: StackSpec, layer: int, shared: float, own: float, pairs: float
) -> tuple[float, float]:
    """Numbers that self-attention or a convolution reads of tokens that rows share and of the rows'
    own; and its multiply-adds for so many (query, key) pairs of tokens."""
    if stack.convolution is None:
        return attended(stack, layer, shared + own, pairs)
    inputs = query_size(stack, layer)
    return inputs * (shared + own), inputs * pairs


def attended(stack: StackSpec, layer: int, tokens: float, pairs: float) -> tuple[float, float]:
    """Numbers of keys and values that attention reads, and its multiply-adds; see looked_at."""
    return 2 * tokens * key_size(stack, layer), 2 * pairs * query_size(stack, layer)


def query_size(stack: StackSpec, layer: int) -> int:
    """Numbers of a token's queries in a layer, or of a convolution's inputs."""
    return stack.sizes(layer).heads * stack.head_dim


def key_size(stack: StackSpec, layer: int) -> int:
    """Numbers of a token's keys in a layer, or of its values."""
    return stack.sizes(layer).kv_heads * stack.head_dim


def query_weights(stack: StackSpec, layer: int) -> int:
    """Numbers in the weights of queries and output."""
    return 2 * stack.hidden * query_size(stack, layer)


def layer_weights(stack: StackSpec, layer: int) -> int:
    """Numbers in a layer's weights, cross-attention's excepted."""
    sizes, convolution = stack.sizes(layer), stack.convolution
    feed_forward = (3 if stack.gated else 2) * stack.hidden * sizes.ffn
    if convolution is None:
        keys = 2 * stack.hidden * key_size(stack, layer)
        return query_weights(stack, layer) + keys + feed_forward
    kernels = sizes.heads * convolution.kernel_sizes[layer]
    inputs = query_size(stack, layer)
    products = (3 if convolution.gated else 2) * stack.hidden * inputs
    return products + kernels * (inputs if convolution.dynamic else 1) + feed_forward


def reach(stack: StackSpec, layer: int) -> float:
    """The most tokens that a token attends to."""
    if stack.convolution is not None:
        return stack.convolution.kernel_sizes[layer]
    return (stack.window[layer] if stack.window else 0) or float("inf")


def within(most: float, prompt: int, generated: float) -> tuple[float, float]:
    """Numbers of the prompt's keys and of the generated ones in a window of `most`."""
    own = min(generated, most)
    return min(prompt, most - own), own
