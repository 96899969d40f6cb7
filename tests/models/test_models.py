"""Our torch modules compute what transformers computes, start well, and learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from decoding.models import Loaded, load
from decoding.models.layouts.positions import sinusoids
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.torch.blocks import Dropout
from decoding.models.torch.gpt import GPT
from decoding.models.torch.module import module
from decoding.models.torch.transformer import Transformer

MARIAN: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 20,
    "pad_token_id": 49,
    "decoder_start_token_id": 49,
    "eos_token_id": 0,
}
GPT2: dict[str, Any] = {
    "vocab_size": 50,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 20,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
MARIAN_CASES = {
    "plain": {},
    "swish": {"activation_function": "swish", "scale_embedding": True},
    "relu": {"activation_function": "relu"},
    "unlike-stacks": {
        "encoder_layers": 1,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 6,
        "encoder_ffn_dim": 16,
    },
    "two-vocabularies": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 33,
        "pad_token_id": 32,
    },
    "nothing-tied": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "decoder_vocab_size": 33,
        "pad_token_id": 32,
    },
}
GPT2_CASES = {
    "plain": {},
    "gelu": {"activation_function": "gelu", "n_inner": 30, "layer_norm_epsilon": 1e-3},
    "unscaled": {"scale_attn_weights": False, "tie_word_embeddings": False},
    "by-layer": {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"},
    "upcast": {"reorder_and_upcast_attn": True, "attn_implementation": "eager"},
}


def scrambled(model: Any) -> Any:
    """No weight is left at the zero or one of a new model, and logits differ clearly."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" not in name:
                scale = 0.5 if tensor.ndim > 1 else 0.3
                tensor.copy_(scale * torch.randn(tensor.shape) + name.endswith("norm.weight"))
    return model.eval()


def oracle(loaded: Loaded) -> nn.Module:
    ours = module(loaded.spec, lambda name: f"{name}.bias" in loaded.state)
    ours.load_state_dict(loaded.state)
    return ours.eval()


def padded(rows: int, width: int, *, left: bool) -> Tensor:
    """A mask bool [rows, width]; row i has i tokens of padding."""
    place = torch.arange(width)
    skipped = torch.arange(rows)[:, None]
    return place >= skipped if left else place < width - skipped


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.std() > 0.5, "the logits are too flat to tell models apart"
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", MARIAN_CASES.values(), ids=MARIAN_CASES)
@torch.no_grad()
def test_transformer_has_the_logits_of_marian(options: dict[str, Any]) -> None:
    theirs = scrambled(transformers.MarianMTModel(transformers.MarianConfig(**MARIAN | options)))
    source = torch.randint(0, 33, (4, 9))
    target = torch.randint(0, 33, (4, 6))
    mask = padded(4, 9, left=False)
    expected = theirs(source, attention_mask=mask, decoder_input_ids=target).logits
    assert_close(oracle(load(theirs))(source, mask, target), expected)


@torch.no_grad()
def test_transformer_has_the_logits_of_a_pre_norm_model() -> None:
    """mBART is what Marian's three flags describe, but for its learned positions from 2 on."""
    flags = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
    options = MARIAN | {"scale_embedding": True, "activation_function": "relu"}
    theirs = scrambled(
        transformers.MBartForConditionalGeneration(transformers.MBartConfig(**options))
    )
    table = torch.from_numpy(sinusoids(20, 24))
    state = theirs.state_dict()
    for side in ("encoder", "decoder"):
        state.pop(f"model.{side}.embed_positions.weight")[2:] = table
    config = options | dict.fromkeys(flags, True)
    loaded = load(InMemory(config, state))
    source, target = torch.randint(0, 49, (2, 4, 9))
    mask = padded(4, 9, left=False)
    expected = theirs(source, attention_mask=mask, decoder_input_ids=target).logits
    assert_close(oracle(loaded)(source, mask, target), expected)


@torch.no_grad()
def test_blenderbot_small_scales_the_embeddings_of_its_encoder_alone() -> None:
    """The decoder's norm hides a factor but for its epsilon, which counts beside small rows."""
    config = transformers.BlenderbotSmallConfig(
        **MARIAN, scale_embedding=True, tie_word_embeddings=False
    )
    theirs = scrambled(transformers.BlenderbotSmallForConditionalGeneration(config))
    theirs.model.decoder.embed_tokens.weight *= 0.01  # the encoder has another
    source, target = torch.randint(0, 49, (2, 4, 9))
    mask = padded(4, 9, left=False)
    expected = theirs(source, attention_mask=mask, decoder_input_ids=target).logits
    assert_close(oracle(load(theirs))(source, mask, target), expected)


class InMemory:
    """The three things that `load` asks of a transformers model."""

    def __init__(self, config: dict[str, Any], state: dict[str, Tensor]) -> None:
        self.config, self.state = transformers.MarianConfig(**config), state

    def state_dict(self) -> dict[str, Tensor]:
        return self.state


InMemory.__name__ = "MarianMTModel"


@pytest.mark.parametrize("options", GPT2_CASES.values(), ids=GPT2_CASES)
@torch.no_grad()
def test_gpt_has_the_logits_of_gpt2(options: dict[str, Any]) -> None:
    theirs = scrambled(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2 | options)))
    ours = oracle(load(theirs))
    ids = torch.randint(0, 50, (4, 9))
    assert_close(ours(ids), theirs(ids).logits)
    mask = padded(4, 9, left=True)
    position = (mask.long().cumsum(1) - 1).clamp(min=0)
    expected = theirs(ids, attention_mask=mask.long(), position_ids=position).logits
    assert_close(ours(ids, mask)[mask], expected[mask])


@pytest.mark.parametrize(("positions", "hidden"), [(5, 2), (300, 64), (17, 7)])
def test_sinusoids_are_marians_to_the_bit(positions: int, hidden: int) -> None:
    from transformers.models.marian import modeling_marian

    table = modeling_marian.MarianSinusoidalPositionalEmbedding(positions, hidden)
    found = torch.from_numpy(sinusoids(positions, hidden))
    torch.testing.assert_close(found, table.create_weight(), rtol=0, atol=0)


def small_spec(*, encoder: bool) -> ModelSpec:
    stack = StackSpec(
        layers=2, hidden=32, heads=2, head_dim=16, ffn=64, vocab=40, positions=16,
        activation="silu", embed_scale=32**0.5, embed_norm=False, pre_norm=not encoder,
        final_norm=not encoder, eps=1e-5, attention_scale=(0.25, 0.25),
    )  # fmt: skip
    return ModelSpec(encoder=stack if encoder else None, decoder=stack)


@pytest.mark.parametrize("family", ["transformer", "gpt"])
def test_new_models_learn_a_batch_by_heart(family: str) -> None:
    torch.manual_seed(1)
    source, target = torch.randint(0, 40, (2, 8, 10))
    mask = torch.ones_like(source, dtype=torch.bool)
    model: Transformer | GPT
    if family == "transformer":
        model = Transformer(small_spec(encoder=True), tied=True)
    else:
        model = GPT(small_spec(encoder=False), tied=True)

    def loss() -> Tensor:
        inputs = target[:, :-1]
        logits = model(source, mask, inputs) if family == "transformer" else model(inputs)
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())

    assert 0.9 < loss().item() / torch.tensor(40.0).log().item() < 1.4  # about as good as guessing
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(80):
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        optimizer.step()
    assert loss().item() < 0.5


def test_tied_tables_are_one_parameter_and_positions_are_not_trained() -> None:
    tied = Transformer(small_spec(encoder=True), tied=True)
    assert tied.encoder.embed.tokens is tied.decoder.embed.tokens is tied.output.weight
    positions = tied.encoder.embed.positions
    assert positions is not None and not positions.requires_grad
    gpt = GPT(small_spec(encoder=False), tied=True)
    assert gpt.decoder.embed.tokens is gpt.output.weight
    positions = gpt.decoder.embed.positions
    assert positions is not None and positions.requires_grad


@pytest.mark.parametrize(
    "rates", [Dropout(block=0.5), Dropout(attention=0.5), Dropout(activation=0.5)]
)
def test_dropout_acts_in_training_alone(rates: Dropout) -> None:
    torch.manual_seed(0)
    model = Transformer(small_spec(encoder=True), dropout=rates)
    ids = torch.arange(6)[None]
    inputs = (ids, torch.ones(1, 6, dtype=torch.bool), ids)
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    assert torch.equal(model(*inputs), model(*inputs))


def test_a_spec_of_the_other_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="has an encoder"):
        Transformer(small_spec(encoder=False))
    with pytest.raises(ValueError, match="has no encoder"):
        GPT(small_spec(encoder=True))
