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
    weights = stack.layers * (attention_weights(stack) + feed_forward_weights(stack))
    if spec.encoder is not None:
        weights += stack.layers * query_weights(stack)  # its keys and values are there already
    weights += stack.vocab * stack.hidden
    generated = (length + 1) / 2
    kept = attended = 0.0  # keys, over all layers: read from memory, and seen by all rows
    for layer in range(stack.layers):
        for tokens in given:
            shared, own = float(tokens), generated
            if spec.encoder is None:
                shared, own = within(window(stack, layer), tokens, generated)
            kept += shared + beams * own
            attended += beams * (shared + own)
    return Work(
        bytes=width * weights + max(2, width) * 2 * kept * key_size(stack),
        flops=2 * weights * rows + 4 * attended * stack.heads * stack.head_dim,
    )


def work_before(spec: ModelSpec, given: Sequence[int], dtype: str) -> Work:
    """Of the encoder and the keys and values that the decoder takes from it, or of all but the last
    token of each prompt."""
    decoder = spec.decoder
    if spec.encoder is not None:
        stack, tokens, squares = spec.encoder, sum(given), float(sum(n * n for n in given))
        more = decoder.layers * 2 * decoder.hidden * key_size(decoder)
    else:
        stack, tokens, more = decoder, sum(given) - len(given), 0
        squares = sum(n * n for n in given) / 2  # a token sees those before it
    weights = stack.layers * (attention_weights(stack) + feed_forward_weights(stack)) + more
    if tokens == 0:
        return Work(0.0, 0.0)
    return Work(
        bytes=WIDTHS[dtype] * weights,
        flops=2 * weights * tokens + 4 * squares * stack.layers * stack.heads * stack.head_dim,
    )


def stages(spec: ModelSpec) -> int:
    """Kernels of a step that wait for one another: products of queries, keys and values, attention,
    output; the same with the source; the two of the feed-forward, which a parallel one has beside
    attention's; and embedding, logits and selection."""
    layer = 3 + (0 if spec.decoder.parallel else 2) + (0 if spec.encoder is None else 3)
    return layer * spec.decoder.layers + 3


def key_size(stack: StackSpec) -> int:
    """Numbers of a token's keys in a layer, or of its values."""
    return (stack.kv_heads or stack.heads) * stack.head_dim


def query_weights(stack: StackSpec) -> int:
    """Of queries and output."""
    return 2 * stack.hidden * stack.heads * stack.head_dim


def attention_weights(stack: StackSpec) -> int:
    return query_weights(stack) + 2 * stack.hidden * key_size(stack)


def feed_forward_weights(stack: StackSpec) -> int:
    return (3 if stack.gated else 2) * stack.hidden * stack.ffn


def window(stack: StackSpec, layer: int) -> float:
    """Keys that a query sees at most."""
    return (stack.window[layer] if stack.window else 0) or float("inf")


def within(most: float, prompt: int, generated: float) -> tuple[float, float]:
    """How many keys of the prompt and of what was generated lie in a window of `most`."""
    own = min(generated, most)
    return min(prompt, most - own), own
