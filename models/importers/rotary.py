"""Rotary positions as a configuration describes them, and the ways to stretch them to longer texts.

A configuration of today has a table `rope_parameters`; older ones have `rope_theta` and
`partial_rotary_factor` themselves, and in `rope_scaling` how positions are stretched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from decoding.models.importers.options import positive, size
from decoding.models.positions import rotary_frequencies
from decoding.models.spec import RotarySpec

COMMON = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}
ORIGINAL = "original_max_position_embeddings"
TYPES = {  # and what its table may hold beside the above
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", ORIGINAL},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", ORIGINAL},
}


def rotary(config: Mapping[str, Any], head_dim: int) -> tuple[RotarySpec, dict[str, Tensor]]:
    """The spec, and the weight of the frequencies. Raises ValueError that names an option which is
    not what we implement."""
    options = parameters(config)
    width = turning(int(head_dim * positive(options, "partial_rotary_factor")), head_dim)
    base = positive(options, "rope_theta")
    kind, factor = options["rope_type"], 1.0
    frequencies = rotary_frequencies(width, base)
    if kind == "linear":
        frequencies = frequencies / positive(options, "factor")
    elif kind == "llama3":
        frequencies = llama3(frequencies, options)
    elif kind == "yarn":
        frequencies, factor = yarn(frequencies, options, base)
    return RotarySpec(size=width, factor=factor), {"decoder.rotary": frequencies}


def turning(size: int, head_dim: int) -> int:
    """size: RotarySpec.size. Raises ValueError where a head has no such pairs."""
    if size % 2 or not 0 < size <= head_dim:
        raise ValueError(f"the configuration turns {size} numbers of heads of {head_dim} by pairs")
    return size


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind not in TYPES:
        raise ValueError(
            f"the configuration: rope_type={kind!r} is not supported, only {', '.join(TYPES)}"
        )
    unknown = given.keys() - COMMON - TYPES[kind]
    if unknown:
        raise ValueError(
            f"the configuration: {', '.join(sorted(unknown))} of rope_type={kind!r} "
            "is not supported"
        )
    whole = {"rope_theta": config.get("rope_theta", 10000.0)}
    whole["partial_rotary_factor"] = config.get("partial_rotary_factor", 1.0)
    whole[ORIGINAL] = config.get("max_position_embeddings")
    return {**whole, **given, "rope_type": kind}


def llama3(frequencies: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: pairs that turn often within the original positions stay as they are, those that
    turn seldom become slower by `factor`, those between something between."""
    seldom, often = positive(options, "low_freq_factor"), positive(options, "high_freq_factor")
    turns = size(options, ORIGINAL) * frequencies / (2 * math.pi)
    kept = ((turns - seldom) / (often - seldom)).clamp(0, 1)
    return slowed(frequencies, kept, positive(options, "factor"))


def yarn(frequencies: Tensor, options: Mapping[str, Any], base: float) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2024): the same with a ramp over the pairs' numbers; and what multiplies
    sine and cosine, so that attention keeps its sharpness."""
    pairs = len(frequencies)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(size(options, ORIGINAL) / (times * 2 * math.pi)) / math.log(base)

    first = max(math.floor(pair_that_turns(options.get("beta_fast") or 32)), 0)
    last = min(math.ceil(pair_that_turns(options.get("beta_slow") or 1)), 2 * pairs - 1)
    ramp = (torch.arange(pairs).float() - first) / max(last - first, 0.001)
    factor = positive(options, "factor")
    sharpness = options.get("attention_factor") or 0.1 * math.log(max(factor, 1.0)) + 1
    return slowed(frequencies, 1 - ramp.clamp(0, 1), factor), sharpness


def slowed(frequencies: Tensor, kept: Tensor, factor: float) -> Tensor:
    """kept: between 0, divided by `factor`, and 1, as they are."""
    return kept * frequencies + (1 - kept) * frequencies / factor
