"""Reads rotary positions from a configuration, with the ways to scale them to longer texts.

A configuration of today has a table `rope_parameters`; older ones have `rope_theta` and
`partial_rotary_factor` themselves, and in `rope_scaling` how positions are stretched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding.models.files import short
from decoding.models.layouts.options import integer, positive, size
from decoding.models.layouts.positions import rotary_frequencies, rounded, wave_lengths
from decoding.models.spec import RotarySpec
from decoding.models.weights.dtypes import Array

COMMON = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}
ORIGINAL = "original_max_position_embeddings"
TYPES = {  # and the options that its table may hold beside those above
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", ORIGINAL},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", ORIGINAL},
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor", ORIGINAL},
    "dynamic": {"factor"},
}
# What a table of any type may hold without effect, as in transformers, which warns of some.
UNREAD = {"factor", ORIGINAL, "attn_factor", "finetuned"}
OTHER_NAMES = {"su": "longrope"}  # of the first files of Phi-3
BEYOND = 1 << 14  # longer rows that have a table of their own, of dynamic positions


def rotary(config: Mapping[str, Any], head_dim: int) -> tuple[RotarySpec, dict[str, Array]]:
    """The spec, and the weight of the frequencies. Raises ValueError that names an unsupported
    option."""
    options = parameters(config)
    width = rotary_size(
        "partial_rotary_factor",
        int(head_dim * positive(options, "partial_rotary_factor")),
        head_dim,
    )
    base = positive(options, "rope_theta")
    kind, factor = options["rope_type"], 1.0
    if kind == "longrope":
        return longrope(options, width, base)
    if kind == "dynamic":
        return dynamic(options, width, base)
    frequencies = rotary_frequencies(width, base)
    if kind == "linear":
        frequencies = frequencies / positive(options, "factor")
    elif kind == "llama3":
        frequencies = llama3(frequencies, options)
    elif kind == "yarn":
        frequencies, factor = yarn(frequencies, options, base)
    return RotarySpec(size=width, factor=factor), {"decoder.rotary": frequencies}


def positions(config: Mapping[str, Any], rope: RotarySpec) -> int:
    """StackSpec.positions: max_position_embeddings, or the longest row that has a table."""
    return max(size(config, "max_position_embeddings"), rope.original + rope.tables - 1)


def rotary_size(option: str, size: int, head_dim: int) -> int:
    """size: RotarySpec.size, which an option sets. Raises ValueError where a head has no such
    pairs."""
    if size % 2 or not 0 < size <= head_dim:
        raise ValueError(
            f"the configuration: {option} makes the rotary dimension {size}: it must be even, and "
            f"from 2 to the head's {head_dim}"
        )
    return size


def table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise ValueError(f"the configuration must set {name} to a table, got {short(value)}")
    return value


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    given = table(config, "rope_scaling") or table(config, "rope_parameters")
    kind = str(given.get("rope_type") or given.get("type") or "default")
    kind = OTHER_NAMES.get(kind, kind)
    if kind not in TYPES:
        raise ValueError(
            f"the configuration: rope_type={short(kind)} is not supported, only {', '.join(TYPES)}"
        )
    unknown = given.keys() - COMMON - TYPES[kind] - UNREAD
    if unknown:
        raise ValueError(
            f"the configuration: {', '.join(sorted(unknown))[:100]} of rope_type={kind!r} "
            "is not supported"
        )
    whole = {"rope_theta": config.get("rope_theta", 10000.0)}
    whole["partial_rotary_factor"] = config.get("partial_rotary_factor", 1.0)
    whole["max_position_embeddings"] = whole[ORIGINAL] = config.get("max_position_embeddings")
    first = {} if config.get(ORIGINAL) is None else {ORIGINAL: config[ORIGINAL]}
    return {**whole, **given, **first, "rope_type": kind}


def longrope(
    options: Mapping[str, Any], width: int, base: float
) -> tuple[RotarySpec, dict[str, Array]]:
    """LongRoPE (Ding et al. 2024): each pair becomes slower by a factor of its own, one in rows of
    up to the original positions, another in longer ones; and the factor of sine and cosine."""
    original = integer(options, ORIGINAL, 2)
    factors = [pair_factors(options, name, width // 2) for name in ("short_factor", "long_factor")]
    stretch = size(options, "max_position_embeddings") / original
    factor = given_or(options, "factor", stretch)
    usual = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    sharpness = given_or(options, "attention_factor", usual)
    spec = RotarySpec(width, factor=sharpness, tables=2, original=original, settled=True)
    frequencies = 1 / (np.array(factors, np.float32) * wave_lengths(width, base))
    return spec, {"decoder.rotary": frequencies}


def given_or(options: Mapping[str, Any], name: str, usual: float) -> float:
    return usual if options.get(name) is None else positive(options, name)


def pair_factors(options: Mapping[str, Any], name: str, pairs: int) -> list[float]:
    given = options.get(name)
    if not isinstance(given, list) or len(given) != pairs:
        raise ValueError(
            f"the configuration must set {name} to a list of {pairs} numbers, got {short(given)}"
        )
    return [positive({name: number}, name) for number in given]


def dynamic(
    options: Mapping[str, Any], width: int, base: float
) -> tuple[RotarySpec, dict[str, Array]]:
    """NTK-aware scaling by length: the base grows with each token after the original positions, by
    the row's length when the token is read. Earlier keys keep their rotation."""
    original, factor = size(options, "max_position_embeddings"), positive(options, "factor")
    if width < 4:
        raise ValueError(
            f"the configuration: rope_type='dynamic' needs a rotary dimension of at least 4, got "
            f"{width}"
        )
    longest = max(original, min(int(original * factor), original + BEYOND))
    lengths = np.arange(original, longest + 1, dtype=np.float32)  # as in transformers
    stretch = factor * lengths / original - (factor - 1)
    grown = rounded(np.power, stretch, np.array(width / (width - 2), np.float32))
    frequencies = 1 / wave_lengths(width, (base * grown)[:, None])
    spec = RotarySpec(width, tables=len(lengths), original=original)
    return spec, {"decoder.rotary": frequencies}


def llama3(frequencies: Array, options: Mapping[str, Any]) -> Array:
    """Llama 3.1: pairs of a high frequency in the original positions stay as they are, those of a
    low frequency become slower by `factor`, and the others are interpolated."""
    seldom, often = positive(options, "low_freq_factor"), positive(options, "high_freq_factor")
    rotations = size(options, ORIGINAL) * frequencies / (2 * math.pi)
    kept = ((rotations - seldom) / (often - seldom)).clip(0, 1)
    return slowed(frequencies, kept, positive(options, "factor"))


def yarn(frequencies: Array, options: Mapping[str, Any], base: float) -> tuple[Array, float]:
    """YaRN (Peng et al. 2024): the same with a ramp over the pairs' indices; and the factor of
    sine and cosine, which keeps attention's sharpness."""
    pairs: int = frequencies.shape[-1]
    if base <= 1:
        raise ValueError(
            f"the configuration: rope_theta of rope_type='yarn' is above 1, not {base}"
        )

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(size(options, ORIGINAL) / (times * 2 * math.pi)) / math.log(base)

    first = max(math.floor(pair_that_turns(given_or(options, "beta_fast", 32))), 0)
    last = min(math.ceil(pair_that_turns(given_or(options, "beta_slow", 1))), 2 * pairs - 1)
    ramp = (np.arange(pairs, dtype=np.float32) - first) / max(last - first, 0.001)
    factor = positive(options, "factor")
    usual = 0.1 * math.log(max(factor, 1.0)) + 1
    sharpness = given_or(options, "attention_factor", usual)
    return slowed(frequencies, 1 - ramp.clip(0, 1), factor), sharpness


def slowed(frequencies: Array, kept: Array, factor: float) -> Array:
    """kept: between 0, divided by `factor`, and 1, as they are."""
    return kept * frequencies + (1 - kept) * frequencies / factor
