"""Names and configurations of checkpoints: what published ones hold, and everything refused."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import decoding.models
from decoding.models import load
from tests.support.checkpoints import (
    DECODER,
    ENCODER,
    FAMILIES,
    OUTPUT,
    REFUSED,
    SHARED,
    Config,
    State,
    assert_same,
    bart,
    gpt2,
    is_one,
    marian,
    opt,
    stored,
    write,
)
from tests.support.packed import pack
from tests.support.random_models import spec_of

# Names


def test_gpt2_as_published_without_prefix_and_with_masks(tmp_path: Path) -> None:
    model = gpt2()
    state = {name.removeprefix("transformer."): t for name, t in stored(model).items()}
    for layer in range(2):
        state[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 12, 12).tril()
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    assert_same(load(write(tmp_path, model, state)).state, load(model).state)


@pytest.mark.parametrize("name", [SHARED, ENCODER, DECODER, OUTPUT])
def test_one_table_under_any_of_its_names(name: str, tmp_path: Path) -> None:
    model = marian()
    state = stored(model)
    state[name] = state.pop(SHARED)
    loaded = load(write(tmp_path, model, state))
    assert_same(loaded.state, load(model).state)
    assert is_one(loaded, "encoder.embed.tokens", "decoder.embed.tokens", "output.weight")


def test_a_table_that_the_file_holds_is_used_though_it_could_be_tied(tmp_path: Path) -> None:
    model = marian()
    state = stored(model) | {OUTPUT: torch.randn(30, 16)}
    loaded = load(write(tmp_path, model, state)).state
    torch.testing.assert_close(loaded["output.weight"], state[OUTPUT])
    torch.testing.assert_close(loaded["decoder.embed.tokens"], state[SHARED])
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path).state_dict()
    torch.testing.assert_close(theirs[OUTPUT], state[OUTPUT])


def test_separate_tables_with_an_untied_or_a_tied_output(tmp_path: Path) -> None:
    options = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 32}
    untied = marian(tie_word_embeddings=False, **options)
    loaded = load(write(tmp_path / "untied", untied))
    assert_same(loaded.state, load(untied).state)
    spec = spec_of(loaded)
    assert spec.encoder is not None
    assert (spec.encoder.vocab, spec.decoder.vocab) == (30, 32)
    tied = load(write(tmp_path / "tied", marian(**options)))
    assert is_one(tied, "output.weight", "decoder.embed.tokens")
    assert not is_one(tied, "output.weight", "encoder.embed.tokens")


def test_stored_sinusoids_are_used(tmp_path: Path) -> None:
    model = marian()
    name = "model.decoder.embed_positions.weight"
    state = stored(model) | {name: torch.randn(12, 16)}
    loaded = load(write(tmp_path, model, state)).state
    torch.testing.assert_close(loaded["decoder.embed.positions"], state[name])
    assert not torch.equal(loaded["encoder.embed.positions"], state[name])


def test_the_outputs_bias_is_there_only_where_it_is_not_zero(tmp_path: Path) -> None:
    model = marian()
    assert "output.bias" not in load(model).state
    bias = torch.randn(1, 30)
    model.final_logits_bias.copy_(bias)
    loaded = load(write(tmp_path, model))
    torch.testing.assert_close(loaded.state["output.bias"], bias[0])
    assert "output.bias" in pack(loaded.state, loaded.spec)


@pytest.mark.parametrize("whole", [True, False])
def test_opt_with_the_names_of_either_class(whole: bool, tmp_path: Path) -> None:
    model = opt()
    state = {name: t.clone() for name, t in model.state_dict().items() if name != OUTPUT}
    if not whole:
        state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    assert_same(load(write(tmp_path, model, state)).state, load(model).state)


def test_projections_become_part_of_the_tables() -> None:
    model = opt()
    state = load(model).state
    stored = model.model.decoder
    tokens = stored.project_in(stored.embed_tokens.weight)
    torch.testing.assert_close(state["decoder.embed.tokens"], tokens.detach())
    hidden = torch.randn(3, 16)
    logits = model.lm_head(stored.project_out(hidden))
    torch.testing.assert_close(hidden @ state["output.weight"].t(), logits.detach())


def test_what_old_files_hold_beside_the_weights(tmp_path: Path) -> None:
    model = bart()
    state = stored(model)
    state["model.encoder.version"] = torch.tensor([3.0])
    assert_same(load(write(tmp_path, model, state)).state, load(model).state)


# Configurations


def test_what_a_configuration_leaves_out_means_what_it_means_in_transformers(
    tmp_path: Path,
) -> None:
    silent: Config = {
        "activation_function": None, "max_position_embeddings": None, "eos_token_id": None,
        "forced_eos_token_id": None, "share_encoder_decoder_embeddings": None,
        "tie_word_embeddings": None, "scale_embedding": None, "decoder_vocab_size": None,
        "architectures": None,
    }  # fmt: skip
    loaded = load(write(tmp_path, marian(), **silent))
    decoder = spec_of(loaded).decoder
    assert decoder.activation == "gelu" and decoder.positions == 1024
    assert loaded.architecture == "MarianMTModel"  # from model_type
    assert loaded.config["eos_token_id"] == 0
    # There is no generation_config.json: options are config.json's, which leaves these out.
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path).generation_config
    for option in ("eos_token_id", "forced_eos_token_id", "decoder_start_token_id"):
        assert loaded.generation_config.get(option) == getattr(theirs, option)


@pytest.mark.parametrize(
    ("published", "ours"),
    [("relu", "relu"), ("gelu", "gelu"), ("gelu_new", "gelu_tanh"),
     ("gelu_pytorch_tanh", "gelu_tanh"), ("silu", "silu"), ("swish", "silu")],
)  # fmt: skip
def test_activations(published: str, ours: str) -> None:
    assert spec_of(load(gpt2(activation_function=published))).decoder.activation == ours


def test_numbers_of_a_specification() -> None:
    decoder = spec_of(load(marian(scale_embedding=True))).decoder
    assert decoder.embed_scale == math.sqrt(16) and decoder.attention_scale == (8**-0.5,) * 2
    options = {"scale_attn_by_inverse_layer_idx": True, "n_inner": 20, "layer_norm_epsilon": 1e-3}
    decoder = spec_of(load(gpt2(**options))).decoder
    assert decoder.attention_scale == (8**-0.5, 8**-0.5 / 2)
    assert (decoder.ffn, decoder.eps) == (20, 1e-3)
    assert spec_of(load(gpt2(scale_attn_weights=False))).decoder.attention_scale == (1, 1)


def test_packed_weights_are_copies() -> None:
    model = gpt2()
    loaded = load(model)
    packed = pack(loaded.state, loaded.spec)
    before = {name: tensor.clone() for name, tensor in packed.items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    assert all(torch.equal(packed[name], before[name]) for name in packed)
    assert loaded.directory is None


# What is refused


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("marian", {"architectures": ["MBartModel"]}, "architecture 'MBartModel' is not supported"),
        ("marian", {"architectures": None, "model_type": "electra"}, "model_type 'electra'"),
        ("marian", {"activation_function": "mish"}, "activation_function='mish'"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings=False"),
        ("marian", {"is_decoder": True}, "is_decoder=True"),
        ("marian", {"is_encoder_decoder": False}, "is_encoder_decoder=False"),
        ("marian", {"quantization_config": {"bits": 8}}, "quantization_config"),
        ("marian", {"encoder_attention_heads": 3}, "encoder_attention_heads=3 does not divide"),
        ("marian", {"decoder_layers": 0}, r"decoder_layers to a whole number .*, got 0"),
        ("marian", {"d_model": None}, r"d_model to a whole number .*, got None"),
        ("marian", {"scale_embedding": 1}, "scale_embedding to true or false, got 1"),
        ("marian", {"normalize_embedding": True}, "model.encoder.layernorm_embedding.weight"),
        ("marian", {"add_final_layer_norm": True}, "model.encoder.layer_norm.weight"),
        ("marian", {"encoder_layers": 2}, "lacks the tensor model.encoder.layers.1."),
        ("marian", {"decoder_layers": 1}, "unexpected tensors.*model.decoder.layers.1."),
        ("marian", {"vocab_size": 31}, r"model.shared.weight.*\[31, 16\], got \[30, 16\]"),
        ("marian", {"encoder_ffn_dim": 8}, r"fc1.weight.*\[8, 16\], got \[24, 16\]"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("gpt2", {"architectures": ["GPT2Model"]}, "architecture 'GPT2Model'"),
        ("gpt2", {"n_inner": 8}, r"transformer.h.0.mlp.c_fc.weight.*\[16, 8\], got \[16, 64\]"),
        ("gpt2", {"n_head": 3}, "n_head=3 does not divide n_embd=16"),
        ("gpt2", {"n_head": True}, r"n_head to a whole number .*, got True"),
        ("gpt2", {"tie_word_embeddings": False}, "lacks the tensor lm_head.weight"),
        ("gpt2", {"layer_norm_epsilon": "small"}, "layer_norm_epsilon.*'small'"),
        ("bart", {"is_decoder": True}, "is_decoder=True"),
        ("bart", {"max_position_embeddings": 13}, r"embed_positions.weight.*\[15, 16\], got \[14"),
        ("bart", {"scale_embedding": 2}, "scale_embedding to true or false, got 2"),
        ("bart", {"model_type": "mbart"}, "encoder.layer_norm.weight"),
        ("bart", {"model_type": "pegasus"}, r"weight.*\[12, 16\]"),
        ("bart", {"model_type": "m2m_100", "pad_token_id": -1},
         r"pad_token_id to a whole number .*, got -1"),
        ("opt", {"word_embed_proj_dim": 9}, r"embed_tokens.weight.*\[30, 9\], got \[30, 8\]"),
        ("opt", {"word_embed_proj_dim": 16}, r"embed_tokens.weight.*\[30, 16\], got \[30, 8\]"),
        ("opt", {"word_embed_proj_dim": "8"}, r"word_embed_proj_dim to a whole number .*, got '8'"),
        ("opt", {"activation_function": "mish"}, "activation_function='mish'"),
        ("opt", {"do_layer_norm_before": False}, "unexpected tensors.*final_layer_norm.weight"),
        ("opt", {"enable_bias": False}, "unexpected tensors.*self_attn.k_proj.bias"),
        ("opt", {"layer_norm_elementwise_affine": False}, "unexpected tensors.*final_layer_norm"),
    ],
)  # fmt: skip
def test_refused_configurations(family: str, config: Config, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, REFUSED[family](), **config))


def remove(state: State, name: str) -> None:
    del state[name]


def add(state: State, name: str) -> None:
    state[name] = torch.zeros(2)


def spoil(state: State, name: str) -> None:
    state[name].view(-1)[3] = math.nan


def overflow(state: State, name: str) -> None:
    state[name] = state[name].double() * 1e300  # beyond float32


def round_off(state: State, name: str) -> None:
    state[name] = state[name].to(torch.int8)


@pytest.mark.parametrize(
    ("family", "name", "damage", "message"),
    [
        ("marian", "model.decoder.layers.1.fc2.bias", remove, "lacks the tensor"),
        ("marian", SHARED, remove, "lacks the tensor"),
        ("marian", "model.decoder.layers.1.fc3.bias", add, "unexpected tensors"),
        ("marian", "model.encoder.layers.0.self_attn.k_proj.weight", spoil, "NaN or inf"),
        ("marian", "final_logits_bias", spoil, "NaN or inf"),
        ("marian", SHARED, overflow, "NaN or inf"),
        ("gpt2", "transformer.wte.weight", remove, "lacks the tensor"),
        ("gpt2", "transformer.h.1.ln_1.bias", remove, "lacks the tensor"),
        ("gpt2", "transformer.h.1.attn.scale", add, "unexpected tensors"),
        ("gpt2", "transformer.h.1.mlp.c_fc.weight", spoil, "NaN or inf"),
        ("gpt2", "transformer.wpe.weight", round_off, "floating-point numbers, got int8"),
    ],
)
def test_refused_tensors(
    family: str, name: str, damage: Callable[[State, str], None], message: str, tmp_path: Path
) -> None:
    model = FAMILIES[family]()
    state = stored(model)
    damage(state, name)
    with pytest.raises(ValueError, match=message) as error:
        loaded = load(write(tmp_path, model, state))
        pack(loaded.state, loaded.spec)
    assert name in str(error.value)


def test_a_bare_import_of_models_is_refused() -> None:
    file = decoding.models.__file__
    assert file is not None
    spec = importlib.util.spec_from_file_location("models", file)
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match="import decoding.models"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
