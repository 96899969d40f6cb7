"""Decoder-only families: rotary positions as transformers computes them, old names, and everything
refused. Their logits and tokens: test_families.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from decoding.models import load
from decoding.models.layouts.rotary import rotary
from tests.support.checkpoints import assert_same, stored, write
from tests.support.families import BLOOM, DECODER, FAMILIES, GPTJ, GROUPED
from tests.support.random_models import spec_of

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.01 * i for i in range(64)],
    "long_factor": [1.0 + i for i in range(64)],
    "original_max_position_embeddings": 4096,
}
SCALED = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama-3.1": LLAMA3,
    "llama-3.2": LLAMA3 | {"factor": 32.0},
    "yarn": YARN,
    "yarn-changed": YARN | {"attention_factor": 1.5, "beta_fast": 20, "beta_slow": 2},
    "longrope": LONGROPE,
    "longrope-with-its-factor": LONGROPE | {"factor": 16.0},
    "longrope-not-sharper": LONGROPE | {"attention_factor": 1.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "dynamic-by-a-fraction": {"rope_type": "dynamic", "factor": 1.7},
    "yarn-without-its-length": {"rope_type": "yarn", "factor": 40.0},
}


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", SCALED.values(), ids=SCALED)
def test_stretched_positions_of_published_sizes(scaling: dict[str, Any], base: float) -> None:
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072}
    theirs = transformers.LlamaConfig(**sizes, rope_parameters=scaling | {"rope_theta": base})
    compute = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    expected, factor = compute(theirs, torch.device("cpu"))
    spec, weights = rotary(theirs.to_dict(), 128)
    found = torch.from_numpy(weights["decoder.rotary"])
    long = compute(theirs, torch.device("cpu"), seq_len=torch.tensor(131073))[0]
    if spec.tables > 1:
        torch.testing.assert_close(found[1], long, rtol=1e-6, atol=0)
    torch.testing.assert_close(found[0], expected, rtol=3e-7, atol=0)
    assert spec.size == 128 and spec.factor == pytest.approx(factor)
    old: dict[str, Any] = {"rope_theta": base, "max_position_embeddings": 131072}
    old["rope_scaling"] = scaling | {"type": scaling["rope_type"]}
    assert np.array_equal(rotary(old, 128)[1]["decoder.rotary"], weights["decoder.rotary"])


def small(architecture: str, **options: Any) -> Any:
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    return kind(kind.config_class(**options))


@pytest.mark.parametrize(
    ("architecture", "options", "base", "masks"),
    [
        ("BloomForCausalLM", BLOOM, "transformer.", []),
        ("GPTJForCausalLM", GPTJ, "transformer.", ["h.0.attn.bias", "h.0.attn.masked_bias"]),
        ("GPTNeoXForCausalLM", DECODER, "gpt_neox.", ["layers.0.attention.rotary_emb.inv_freq"]),
        ("LlamaForCausalLM", GROUPED, "model.", ["layers.1.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_files_as_they_were_published(
    architecture: str, options: dict[str, Any], base: str, masks: list[str], tmp_path: Path
) -> None:
    """Names of the model without its output, and what is computed today."""
    model = small(architecture, **options)
    state = {name.removeprefix(base): weight for name, weight in stored(model).items()}
    state |= {name: torch.ones(2) for name in masks}
    assert_same(load(write(tmp_path, model, state)).state, load(model).state)


def test_blooms_other_names(tmp_path: Path) -> None:
    model = small("BloomForCausalLM", **BLOOM)
    others: dict[str, Any] = {
        "n_embed": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "seq_length": 70,
    }
    others |= dict.fromkeys(("hidden_size", "n_head", "n_layer"))
    loaded = load(write(tmp_path, model, **others))
    assert_same(loaded.state, load(model).state)
    assert spec_of(loaded).decoder.positions == 70


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "ntk"}}, "rope_type='ntk'.*llama3"),
        ("llama", {"rope_scaling": {"type": "su"}}, "set short_factor to a list of 4 numbers"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, "set factor to a number above 0"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "set factor to a number above 0"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "full_attention of rope_type"),
        ("llama", {"rope_parameters": YARN | {"mscale": 1.0}}, "mscale of rope_type='yarn'"),
        ("llama", {"rope_parameters": YARN | {"truncate": False}}, "truncate of rope_type='yarn'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.4}}, "the rotary dimension 3"),
        ("llama", {"partial_rotary_factor": 0.5}, "rotates 4 of 8 numbers of a head, and"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide"),
        ("llama", {"head_dim": 6}, r"o_proj.weight must have the shape \[32, 24\]"),
        (
            "llama",
            {"attention_bias": True},
            "lacks the tensor model.layers.0.self_attn.o_proj.bias",
        ),
        ("llama", {"hidden_act": "relu2"}, "hidden_act='relu2' is not supported"),
        ("llama-biased", {"mlp_bias": False}, "unexpected tensors.*mlp.up_proj.bias"),
        (
            "mistral",
            {"sliding_window": 0},
            r"set sliding_window to a whole number .*, got 0",
        ),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["full_attention"]}, "must be 2 of"),
        ("qwen3", {"model_type": "llama"}, "unexpected tensors.*q_norm"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("gemma2", {"final_logit_softcapping": -1.0}, "set final_logit_softcapping to a number"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm=True is not supported"),
        ("gpt-neox", {"attention_bias": False}, "unexpected tensors.*query_key_value.bias"),
        ("gptj", {"rotary_dim": 12}, "the head's 8"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm=True"),
    ],
)
def test_refused_configurations(
    family: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = small(FAMILIES[family].architecture, **FAMILIES[family].config)
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, model, **config))
