"""detect_overflow: the first tensor that is not finite is named, and how large each one becomes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch

import decoding
from decoding.engine.overflow import FLOAT16, TensorOverflow
from tests.serving.engines import assert_same, outcome
from tests.support.calls import ragged
from tests.support.families import FAMILIES, encoder
from tests.support.random_models import load, ours, reference

BIG = 37  # the token that breaks a block
OPTIONS: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": None, "bad_words_ids": [[BIG]]}

# Greedy search writes BIG in its first step.
LATER: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": None, "sequence_bias": [[[BIG], 1e6]]}


@cache
def llama(layer: int = -1, name: str = "", device: str = "cpu") -> decoding.Model:
    """One whose token BIG makes the output of a product of that layer infinite; none with -1."""
    model = FAMILIES["llama"].model()
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings[:, 0] = 0
        embeddings[BIG, 0] = 10  # a number that no other token has, and no block changes
        for each in model.model.layers:
            each.self_attn.o_proj.weight[0] = each.mlp.down_proj.weight[0] = 0
            each.input_layernorm.weight[0] = each.post_attention_layernorm.weight[0] = 50
        if layer >= 0:
            model.model.layers[layer].get_submodule(name).weight[:, 0] = 3e38
    return decoding.load(model, device, "float32", threads=2, detect_overflow=True)


PLACES = [
    (0, "self_attn.q_proj", "decoder layer 0, self-attention projections"),
    (1, "self_attn.v_proj", "decoder layer 1, self-attention projections"),
    (0, "mlp.up_proj", "decoder layer 0, feed-forward inner activations"),
    (0, "mlp.gate_proj", "decoder layer 0, feed-forward inner activations"),
]


@pytest.mark.parametrize(("layer", "product", "tensor"), PLACES)
def test_the_first_tensor_is_named(layer: int, product: str, tensor: str, device: str) -> None:
    """In a prompt that is read before, in the token that the first step reads, and later."""
    model = llama(layer, product, device)
    rows = [[5, 6, 7], [8, BIG, 9], [5, BIG], [4, 4]]
    said = f"not finite .* for item {{}} at step {{}}, first in the {tensor}$"
    searches: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"do_sample": True, "seed": 1}]
    for search in searches:
        for broken_row in rows[1:3]:
            with pytest.raises(decoding.Error, match=said.format(1, 1)):
                model.generate([rows[0], broken_row, rows[3]], **OPTIONS, **search)
    with pytest.raises(decoding.Error, match=said.format(0, 2)):
        model.generate(rows[:1], **LATER)
    with decoding.Engine(model) as engine:
        requests = [engine.submit(row, **OPTIONS) for row in rows * 2]
        found = [str(outcome(request.result)) for request in requests]
        for row, each in zip(rows * 2, found, strict=True):
            assert each.endswith(f"first in the {tensor}") == (BIG in row), each
    with pytest.raises(decoding.Error, match=f"not finite .* item 2, first in the {tensor}$"):
        model.score([rows[0], rows[3], rows[1]])
    [broken] = [each for each in model.overflow_statistics() if each.tensor == tensor]
    assert broken.not_finite > 0


def test_what_the_source_broke_is_found_at_its_tokens(device: str) -> None:
    name = "marian-two-tables"  # of the encoder and the decoder
    broken = reference(name)
    state = {key: tensor.clone() for key, tensor in broken.state_dict().items()}
    try:
        broken.model.encoder.embed_tokens.weight.data[BIG] = 3e38
        model = load(name, device, threads=1, detect_overflow=True)
    finally:
        broken.load_state_dict(state)
    said = r"not finite .* step 1, first in the encoder (embeddings|layer 0, self-attention \w+)$"
    with pytest.raises(decoding.Error, match=said):
        model.generate([[5, 6, 7], [5, BIG, 8]], **OPTIONS)
    with decoding.Engine(model) as engine:
        for _ in range(2):
            with pytest.raises(decoding.Error, match=said):
                engine.submit([5, BIG, 8], **OPTIONS).result()
        assert engine.submit([5, 6, 7], **OPTIONS).result().shape[0] == 1


def largest(found: list[TensorOverflow]) -> dict[str, float]:
    return {each.tensor: each.largest for each in found}


def test_the_largest_numbers_are_those_of_transformers() -> None:
    """Of every tensor that both have."""
    hf_model = FAMILIES["llama"].model()
    model = decoding.load(hf_model, "cpu", "float32", threads=2, detect_overflow=True)
    ids = [[5, 6, 7, 9, 11], [8, 4, 13, 10, 12]]
    seen: dict[str, float] = {}

    def keep(tensor: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            out = output[0] if isinstance(output, tuple) else output
            seen[tensor] = max(seen.get(tensor, 0.0), float(out.abs().max()))

        return hook

    hf_model.model.embed_tokens.register_forward_hook(keep("decoder embeddings"))
    for i, layer in enumerate(hf_model.model.layers):
        name = f"decoder layer {i}, feed-forward"
        layer.register_forward_hook(keep(f"{name} output"))
        layer.mlp.down_proj.register_forward_pre_hook(
            lambda module, inputs, name=name: keep(f"{name} inner activations")(module, (), inputs)
        )
    model.score(ids)
    with torch.no_grad():
        hf_model(torch.tensor(ids)[:, :-1])
    found = largest(model.overflow_statistics())
    assert len(seen) == 1 + 2 * len(hf_model.model.layers)
    assert list(found)[0] == "decoder embeddings"
    for tensor, expected in seen.items():
        assert found[tensor] == pytest.approx(expected, rel=1e-4), tensor


def beyond_float16(name: str) -> tuple[Any, str]:
    """One whose token BIG makes a feed-forward block of layer 1 larger than float16 holds, as some
    published T5 and Gemma do."""
    hf_model = FAMILIES[name].model()
    with torch.no_grad():
        embeddings = hf_model.get_input_embeddings().weight
        embeddings[:, 0] = 0
        embeddings[BIG, 0] = 100
        if name == "t5":
            stack, layer = "encoder", hf_model.encoder.block[1].layer[-1]
            layer.layer_norm.weight[0] = 10
            layer.DenseReluDense.wi.weight[:, 0] = 6e4
            layer.DenseReluDense.wo.weight *= 1e-4
        else:
            stack, layer = "decoder", hf_model.model.layers[1]
            layer.post_attention_layernorm.weight[0] = 10
            layer.mlp.gate_proj.weight[:, 0] = layer.mlp.up_proj.weight[:, 0] = 100
            layer.mlp.down_proj.weight *= 1e-4
        for key, parameter in hf_model.named_parameters():  # no block changes that number
            if re.search(r"(self_attn\.o_proj|down_proj|Attention\.o|wo)\.weight$", key):
                parameter[0] = 0
    return hf_model, f"{stack} layer 1, feed-forward inner activations"


@pytest.mark.parametrize("name", ["t5", "gemma"])
def test_how_far_beyond_float16(name: str) -> None:
    """The question of who has a model that overflows, asked in float32."""
    hf_model, tensor = beyond_float16(name)
    model = decoding.load(hf_model, "cpu", "float32", threads=1, detect_overflow=True)
    model.generate([[5, 6, 7]], **OPTIONS)
    assert all(each.float16_share < 0.1 for each in model.overflow_statistics())
    model.generate([[5, BIG, 7]], **OPTIONS)
    beyond = [each for each in model.overflow_statistics() if each.float16_share > 1]
    assert [each.tensor for each in beyond] == [tensor]
    assert beyond[0].largest == beyond[0].float16_share * FLOAT16 and not beyond[0].not_finite


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["t5", "gemma"])
def test_float16_names_what_it_cannot_hold(name: str) -> None:
    hf_model, tensor = beyond_float16(name)
    model = decoding.load(hf_model, "cuda", "float16", detect_overflow=True)
    # At its end: what the last layer's block makes of a token reaches no other one.
    rows = [[5, 6, 7], [5, 7, BIG], [8, 4]]
    said = f"not finite .* for item {{}} at step 1, first in the {tensor}$"
    searches: list[dict[str, Any]] = [{}, {"num_beams": 3}]
    for search in searches:
        with pytest.raises(decoding.Error, match=said.format(1)):
            model.generate(rows, **OPTIONS, **search)
    with decoding.Engine(model) as engine:
        requests = [engine.submit(row, **OPTIONS) for row in rows]
        for row, request in zip(rows, requests, strict=True):
            found = outcome(request.result)
            assert bool(re.search(said.format(0), str(found))) == (BIG in row), found


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_looking_changes_no_result(name: str, device: str) -> None:
    model, inputs = load(name, device, threads=2, detect_overflow=True), ragged(name, 5)
    assert model.detect_overflow
    options: dict[str, Any] = {"max_new_tokens": 9, "return_dict_in_generate": True}
    options |= {"output_sequences_scores": True}
    searches: list[dict[str, Any]] = [{}, {"num_beams": 4}, {"do_sample": True, "seed": 3}]
    searches.append({"guidance_scale": 1.5})
    for search in searches[: 3 + (name == "gpt2")]:
        found, expected = (
            each.generate(**inputs, **options, **search) for each in (model, ours(name, device))
        )
        assert_same(found, expected, device)
    before = largest(model.overflow_statistics())
    model.generate([[5] * 30] * 40, max_new_tokens=9)  # memory of another size, and an engine
    after = largest(model.overflow_statistics())
    assert before.keys() == after.keys()
    assert all(before[tensor] <= after[tensor] for tensor in before), "nothing is forgotten"
    assert all(each.not_finite == 0 for each in model.overflow_statistics())


def test_an_encoder_alone(device: str) -> None:
    model = decoding.load(encoder("bert"), device, "float32", detect_overflow=True)
    states = model.encode([[5, 6, 7], [8, 9]]).last_hidden_state
    found = largest(model.overflow_statistics())
    assert found["encoder output"] == float(states.abs().max())


def test_without_it_there_is_nothing_to_tell() -> None:
    with pytest.raises(ValueError, match=r"load it with detect_overflow=True"):
        ours("gpt2").overflow_statistics()
    with pytest.raises(TypeError, match="detect_overflow must be True or False"):
        load("gpt2", threads=1, detect_overflow=1)
