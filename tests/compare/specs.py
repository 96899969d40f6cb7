"""What tests of comparisons share."""

from __future__ import annotations

from decoding.models import ModelSpec
from decoding.models.spec import StackSpec

STACK = StackSpec(
    layers=6,
    hidden=512,
    heads=8,
    head_dim=64,
    ffn=2048,
    vocab=32000,
    positions=512,
    activation="relu",
    embed_scale=1.0,
    embed_norm=False,
    pre_norm=False,
    final_norm=False,
    eps=1e-5,
    attention_scale=(0.125,) * 6,
)
TRANSFORMER_BASE = ModelSpec(encoder=STACK, decoder=STACK)
GPT = ModelSpec(encoder=None, decoder=STACK)
