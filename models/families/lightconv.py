"""The convolutions of fairseq's `lightconv` models (Wu et al. 2019): LightConv and DynamicConv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding.models.files import short
from decoding.models.layouts.options import flag, layer_count, must_be, size
from decoding.models.spec import ConvolutionSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.dtypes import Array
from decoding.models.weights.lazy import LazyTensor, computed, moved

DYNAMIC = {"lightweight": False, "dynamic": True}
# The stored name of each part of a convolution.
PARTS = {"input": "linear1", "kernel": "conv.weight_linear", "out": "linear2"}
NORMS = {"encoder": "self_attn_layer_norm", "decoder": "conv_layer_norm"}


def convolution_spec(config: Mapping[str, Any], side: str) -> ConvolutionSpec:
    must_be(config, f"{side}_conv_dim", size(config, f"{side}_embed_dim"))
    kind = config.get(f"{side}_conv_type")
    if not isinstance(kind, str) or kind not in DYNAMIC:
        raise ValueError(
            f"the configuration: {side}_conv_type={short(kind)} is not supported, only "
            f"{', '.join(DYNAMIC)}"
        )
    if DYNAMIC[kind]:
        must_be(config, "weight_softmax", True)
    gated = flag(config, f"{side}_glu")
    return ConvolutionSpec(kernel_sizes(config, side), dynamic=DYNAMIC[kind], gated=gated)


def kernel_sizes(config: Mapping[str, Any], side: str) -> tuple[int, ...]:
    """[layers]; fairseq's encoder fails where they are even, since no token is in their middle."""
    option, layers = f"{side}_kernel_size_list", layer_count(config, f"{side}_layers")
    value = config.get(option)
    sizes = list(value) if isinstance(value, (list, tuple)) else []
    if len(sizes) == 1:
        sizes *= layers
    odd = side == "encoder"
    fits = all(isinstance(n, int) and 1 <= n <= 32 and (n % 2 or not odd) for n in sizes)
    if len(sizes) != layers or not fits:
        raise ValueError(
            f"the configuration must set {option} to {layers} {'odd ' * odd}numbers from 1 to 32, "
            f"got {short(value)}"
        )
    return tuple(sizes)


def convolution_weight(
    config: Mapping[str, Any], checkpoint: Checkpoint, name: str, shape: tuple[int, ...]
) -> LazyTensor:
    """name: "encoder.layers.0.convolution.input.weight" and the like."""
    layer, _, part = name.partition(".convolution.")
    side = layer.partition(".")[0]
    if part == "kernel":
        stored = f"{layer}.conv.weight"
        # What was trained with fairseq's own CUDA kernels lacks the axis in the middle.
        whole = (shape[0], 1, shape[1]) if len(checkpoint.shape(stored, 2, 3)) == 3 else shape
        weight = moved(shape, lambda kernel: kernel.reshape(shape), checkpoint.take(stored, *whole))
        if flag(config, "weight_softmax"):
            return computed(shape, softmax, weight)
        return weight
    part, _, kind = part.rpartition(".")
    stored = NORMS[side] if part == "norm" else PARTS[part]
    weight = checkpoint.take(f"{layer}.{stored}.{kind}", *shape)
    if part == "input" and flag(config, f"{side}_glu"):
        half = shape[0] // 2
        return moved(shape, lambda rows: np.concatenate([rows[half:], rows[:half]]), weight)
    return weight


def softmax(kernel: Array) -> Array:
    powers = np.exp(kernel - kernel.max(-1, keepdims=True))
    found: Array = powers / powers.sum(-1, keepdims=True)
    return found
