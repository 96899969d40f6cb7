"""GPT-J (Wang & Komatsuzaki 2021) as transformers' GPTJForCausalLM stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from decoding.models.checkpoint import Checkpoint
from decoding.models.importers import causal
from decoding.models.importers.options import activation, head_dim, positive, size
from decoding.models.importers.rotary import turning
from decoding.models.positions import rotary_frequencies
from decoding.models.spec import ModelSpec, RotarySpec, StackSpec

DEFAULTS = {
    "activation_function": "gelu_new",
    "n_positions": 2048,
    "rotary_dim": 64,
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
LAYOUT = causal.Layout(
    base="transformer.",
    layers="h",
    parts={
        "embed.tokens": ("wte",),
        "self_attention.norm": ("ln_1",),
        "self_attention.qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        "self_attention.out": ("attn.out_proj",),
        "feed_forward.up": ("mlp.fc_in",),
        "feed_forward.down": ("mlp.fc_out",),
        "norm": ("ln_f",),
    },
    biases=frozenset({"norm", "up", "down", "output"}),
)


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Raises ValueError that names an option or tensor that is not what we implement."""
    turns = size(config, "rotary_dim")
    spec = ModelSpec(encoder=None, decoder=decoder_spec(config, turns))
    computed = {"decoder.rotary": rotary_frequencies(turns)}
    return causal.convert(config, checkpoint, spec, LAYOUT, computed)


def decoder_spec(config: Mapping[str, Any], turns: int) -> StackSpec:
    """turns: numbers of a head that do."""
    hidden, layers = size(config, "n_embd"), size(config, "n_layer")
    width = head_dim(config, "n_embd", "n_head")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=4 * hidden if config.get("n_inner") is None else size(config, "n_inner"),
        vocab=size(config, "vocab_size"),
        positions=size(config, "n_positions"),
        activation=activation(config),
        embed_scale=1.0,
        embed_norm=False,
        pre_norm=True,
        final_norm=True,
        eps=positive(config, "layer_norm_epsilon"),
        attention_scale=(width**-0.5,) * layers,
        position_table=False,
        parallel=True,
        shared_norm=True,
        rotary=RotarySpec(size=turning("rotary_dim", turns, width), interleaved=True),
    )
