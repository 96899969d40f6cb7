"""Imports encoders alone by a spec and a `Layout`, which gives each weight's stored name.

What a file holds beside the encoder, the head of its training, is left out, as in transformers'
AutoModel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from decoding.models.spec import EncoderSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import LazyTensor, Weight, computed, joined, moved
from decoding.models.weights.shapes import shapes

NAME = re.compile(r"encoder\.(layers\.(?P<layer>\d+)\.)?(?P<part>.+)\.(?P<kind>weight|bias)")
TABLE = "embeddings.{}_embeddings.weight"
OLD_NORM = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
IGNORED = "embeddings.position_ids"  # the numbers from 0 on


@dataclass(frozen=True)
class Layout:
    """The differences between the families' files.

    base: what their names begin with, but for a head's; a file of the encoder alone leaves it out.
    layers: what a layer's names begin with, then comes its number. parts: what each part was stored
    as; several are stacked. first_position: row of the stored position table that is position 0.
    typed: there is a table of types, too.
    """

    base: str
    layers: str
    parts: Mapping[str, tuple[str, ...]]
    first_position: int = 0
    typed: bool = False


def convert(
    checkpoint: Checkpoint, stack: StackSpec, layout: Layout
) -> tuple[EncoderSpec, dict[str, Weight]]:
    """Raises ValueError that names a tensor that is missing, left over or of another shape."""
    tokens = TABLE.format("word")
    base = "" if tokens in checkpoint else layout.base
    spec = EncoderSpec(encoder=stack, pooler=f"{base}pooler.dense.weight" in checkpoint)
    state: dict[str, Weight] = {
        "encoder.embed.tokens": checkpoint.take(base + tokens, stack.vocab, stack.hidden),
        "encoder.embed.positions": position_table(checkpoint, stack, layout, base),
    }
    for name, shape in shapes(spec).items():
        if name in state:
            continue
        sources = [base + source for source in stored_names(name, layout)]
        part = (shape[0] // len(sources), *shape[1:])
        state[name] = joined(
            *(checkpoint.take(held(checkpoint, source), *part) for source in sources)
        )
    # Of a file without prefix a head is what begins with none of the encoder's own words.
    own = base or ("embeddings.", "pooler.", f"{layout.layers.partition('.')[0]}.")
    checkpoint.finish(lambda name: name == base + IGNORED or not name.startswith(own))
    return spec, state


def position_table(
    checkpoint: Checkpoint, stack: StackSpec, layout: Layout, base: str
) -> LazyTensor:
    """[types * positions, H]: positions' rows, for each type with that type's added."""
    first, stored = layout.first_position, base + TABLE.format("position")
    positions = checkpoint.take(stored, first + stack.positions, stack.hidden)
    if not layout.typed:
        shape = stack.positions, stack.hidden
        return moved(shape, lambda rows: rows[first:], positions)
    checkpoint.check_computed("type_vocab_size", stack.types, stack.positions, stack.hidden)
    types = checkpoint.take(base + TABLE.format("token_type"), stack.types, stack.hidden)
    shape = stack.types * stack.positions, stack.hidden
    return computed(
        shape, lambda kind, rows: (kind[:, None] + rows[first:]).reshape(shape), types, positions
    )


def stored_names(name: str, layout: Layout) -> list[str]:
    """The stored names of a canonical weight, in parts, without the layout's base."""
    if name.startswith("pooler."):
        return [name.replace("pooler.", "pooler.dense.")]
    match = NAME.fullmatch(name)
    assert match is not None, name
    layer = "" if match["layer"] is None else f"{layout.layers}.{match['layer']}."
    return [f"{layer}{part}.{match['kind']}" for part in layout.parts[match["part"]]]


def held(checkpoint: Checkpoint, name: str) -> str:
    """`name`, or its form in files that were converted from TensorFlow."""
    for new, old in OLD_NORM.items():
        before = name.removesuffix(new) + old
        if name.endswith(new) and name not in checkpoint and before in checkpoint:
            return before
    return name
