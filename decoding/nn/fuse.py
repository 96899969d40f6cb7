"""Replaces torch's modules by the fused ones of the same names."""

from __future__ import annotations

from torch import nn

from decoding.nn.dropout import Dropout
from decoding.nn.embedding import Embedding
from decoding.nn.norm import LayerNorm, RMSNorm

OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: Dropout,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
}


def fuse(model: nn.Module) -> None:
    """In place, all that are of exactly torch's types and ask for nothing that ours lack. They stay
    the same objects, with their parameters, hooks and place in the state dict."""
    for module in model.modules():
        ours = OURS.get(type(module))
        if ours is None or asks_for_more(module):
            continue
        module.__class__ = ours
        if isinstance(module, Embedding):
            module.add_to_torchs()


def asks_for_more(module: nn.Module) -> bool:
    if isinstance(module, nn.Embedding):
        return bool(module.max_norm or module.scale_grad_by_freq or module.sparse)
    return isinstance(module, nn.Dropout) and module.inplace
