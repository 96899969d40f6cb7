"""OPT (Zhang et al. 2022) as transformers' OPTForCausalLM stores it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding.models.layouts import seq2seq
from decoding.models.layouts.options import activation, flag, head_dim, layer_count, must_be, size
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weight, computed, joined, moved
from decoding.models.weights.shapes import shapes

DEFAULTS = {
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
}

STACK_NORM = "decoder.norm."
TOKENS = "decoder.embed_tokens.weight"
NORM = re.compile(r"(.+\.)?norm\.(?P<kind>weight|bias)")
FIRST_POSITION = 2  # rows of the stored position table before that of position 0


def convert(
    config: Mapping[str, Any], checkpoint: Checkpoint
) -> tuple[ModelSpec, dict[str, Weight]]:
    """Raises ValueError that names an unsupported option or tensor."""
    must_be(config, "is_encoder_decoder", False)
    decoder = decoder_spec(config)
    spec = ModelSpec(encoder=None, decoder=decoder)
    # A file may hold the names of OPTModel, without the language model around it.
    prefix = "" if TOKENS in checkpoint else "model."
    state = tables(config, checkpoint, decoder, prefix)
    positions = f"{prefix}decoder.embed_positions.weight"
    rows = FIRST_POSITION + decoder.positions
    state["decoder.embed.positions"] = moved(
        (decoder.positions, decoder.hidden),
        lambda table: table[FIRST_POSITION:],
        checkpoint.take(positions, rows, decoder.hidden),
    )
    for name, shape in shapes(spec).items():
        if name in state:
            continue
        if is_left_out(config, name):
            state[name] = np.full(shape, name.endswith("weight"), np.float32)
            continue
        sources = seq2seq.stored_names(name)
        if name.startswith(STACK_NORM):
            sources = [f"decoder.final_layer_norm.{name.removeprefix(STACK_NORM)}"]
        part = (shape[0] // len(sources), *shape[1:])
        state[name] = joined(*(checkpoint.take(prefix + source, *part) for source in sources))
    checkpoint.finish(lambda name: False)
    return spec, state


def decoder_spec(config: Mapping[str, Any]) -> StackSpec:
    hidden, layers = size(config, "hidden_size"), layer_count(config, "num_hidden_layers")
    width = head_dim(config, "hidden_size", "num_attention_heads")
    pre_norm = flag(config, "do_layer_norm_before")
    return StackSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // width,
        head_dim=width,
        ffn=size(config, "ffn_dim"),
        vocab=size(config, "vocab_size"),
        positions=size(config, "max_position_embeddings"),
        activation=activation(config),
        embed_scale=1.0,
        embed_norm=False,
        pre_norm=pre_norm,
        final_norm=pre_norm and not flag(config, "_remove_final_layer_norm"),
        eps=1e-5,
        attention_scale=(width**-0.5,) * layers,
    )


def tables(
    config: Mapping[str, Any], checkpoint: Checkpoint, spec: StackSpec, prefix: str
) -> dict[str, Weight]:
    """The token table and the output's, [V, H].

    Where embeddings are narrower than the layers (word_embed_proj_dim, in OPT-350m alone), each
    table takes its projection in: two tables [V, H] instead of one of half the width.
    """
    width = spec.hidden
    if config.get("word_embed_proj_dim") is not None:
        width = size(config, "word_embed_proj_dim")
    tokens = output = checkpoint.take(prefix + TOKENS, spec.vocab, width)
    if "lm_head.weight" in checkpoint or not flag(config, "tie_word_embeddings"):
        output = checkpoint.take("lm_head.weight", spec.vocab, width)
    if width != spec.hidden:
        into = checkpoint.take(f"{prefix}decoder.project_in.weight", spec.hidden, width)
        out = checkpoint.take(f"{prefix}decoder.project_out.weight", width, spec.hidden)
        shape = spec.vocab, spec.hidden
        tokens = computed(shape, lambda table, matrix: table @ matrix.T, tokens, into)
        output = computed(shape, np.matmul, output, out)
    return {"decoder.embed.tokens": tokens, "output.weight": output}


def is_left_out(config: Mapping[str, Any], name: str) -> bool:
    """Whether the model lacks this bias or norm's weight: zeros and ones then stand in."""
    if NORM.fullmatch(name):
        return not flag(config, "layer_norm_elementwise_affine")
    return name.endswith("bias") and not flag(config, "enable_bias")
