"""The least that a decoding step of a model can take on a machine, from its sizes alone.

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
    """bytes: moved; flops: twice the multiply-adds."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Floor:
    """Of a step: what it must move and compute, and the seconds that this takes at least. bound:
    what they are made of, "memory", "arithmetic" or "stages". NaN and "" where no ceilings are."""

    work: Work
    seconds: float
    bound: str


def floor(
    spec: ModelSpec, given: Sequence[int], beams: int, length: int, ceilings: Ceilings, dtype: str
) -> Floor:
    """given: tokens of each sentence's source or prompt. length: new tokens of each row.

    On a GPU no step is faster than its stages, each of which waits for the one before.
    """
    step, once = work_of_step(spec, given, beams, length, dtype), work_before(spec, given, dtype)
    limits = {**seconds(step, ceilings), "stages": stages(spec) * ceilings.stage}
    known = not math.isnan(ceilings.bandwidth)
    bound = max(limits, key=lambda name: limits[name]) if known else ""
    total = limits.get(bound, math.nan) + max(seconds(once, ceilings).values()) / length
    work = Work(step.bytes + once.bytes / length, step.flops + once.flops / length)
    return Floor(work, total, bound)


def seconds(work: Work, ceilings: Ceilings) -> dict[str, float]:
    return {
        "memory": work.bytes / ceilings.bandwidth,
        "arithmetic": work.flops / ceilings.flops,
    }


def work_of_step(
    spec: ModelSpec, given: Sequence[int], beams: int, length: int, dtype: str
) -> Work:
    """Of the decoder, at the mean length of its rows."""
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
    """Of the encoder and the keys and values that the decoder takes from it, or of all but the last
    token of each prompt."""
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


def stages(spec: ModelSpec) -> int:
    """Kernels of a step that wait for one another: products of queries, keys and values, attention,
    output; the same with the source; the two of the feed-forward, which a parallel one has beside
    attention's; and embedding, logits and selection."""
    layer = 3 + (0 if spec.decoder.parallel else 2) + (0 if spec.encoder is None else 3)
    return layer * spec.decoder.layers + 3


def looked_at(
    stack: StackSpec, layer: int, shared: float, own: float, pairs: float
) -> tuple[float, float]:
    """Numbers that self-attention or a convolution reads of tokens that are shared by rows and of
    the rows' own; and its multiply-adds for so many pairs of a token and one that it looks at."""
    if stack.convolution is None:
        return attended(stack, layer, shared + own, pairs)
    inputs = query_size(stack, layer)
    return inputs * (shared + own), inputs * pairs


def attended(stack: StackSpec, layer: int, tokens: float, pairs: float) -> tuple[float, float]:
    """The same for attention: keys and values."""
    return 2 * tokens * key_size(stack, layer), 2 * pairs * query_size(stack, layer)


def query_size(stack: StackSpec, layer: int) -> int:
    """Numbers of a token's queries in a layer, or of a convolution's inputs."""
    return stack.sizes(layer).heads * stack.head_dim


def key_size(stack: StackSpec, layer: int) -> int:
    """Numbers of a token's keys in a layer, or of its values."""
    return stack.sizes(layer).kv_heads * stack.head_dim


def query_weights(stack: StackSpec, layer: int) -> int:
    """Of queries and output."""
    return 2 * stack.hidden * query_size(stack, layer)


def layer_weights(stack: StackSpec, layer: int) -> int:
    """Of all but cross-attention."""
    sizes, convolution = stack.sizes(layer), stack.convolution
    feed_forward = (3 if stack.gated else 2) * stack.hidden * sizes.ffn
    if convolution is None:
        keys = 2 * stack.hidden * key_size(stack, layer)
        return query_weights(stack, layer) + keys + feed_forward
    taps = sizes.heads * convolution.taps[layer]
    inputs = query_size(stack, layer)
    products = (3 if convolution.gated else 2) * stack.hidden * inputs
    return products + taps * (inputs if convolution.dynamic else 1) + feed_forward


def reach(stack: StackSpec, layer: int) -> float:
    """Tokens that a token looks at, at most."""
    if stack.convolution is not None:
        return stack.convolution.taps[layer]
    return (stack.window[layer] if stack.window else 0) or float("inf")


def within(most: float, prompt: int, generated: float) -> tuple[float, float]:
    """How many keys of the prompt and of what was generated lie in a window of `most`."""
    own = min(generated, most)
    return min(prompt, most - own), own
