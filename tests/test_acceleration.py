"""accelerate(): a transformers model generates with this library, and gives itself back."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tokenizers
import torch
import transformers

import decoding
from decoding.acceleration import POSITIONAL, Acceleration
from decoding.generation.outputs import Output
from tests.support.random_models import reference

IDS = torch.tensor([[3, 4, 5], [6, 7, 8]])


@pytest.fixture(params=["gpt2", "marian"])
def hf_model(request: pytest.FixtureRequest) -> Any:
    return copy.deepcopy(reference(request.param))


@pytest.fixture
def quiet() -> Iterator[None]:
    """Warnings of ours are errors: the calls run here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="this call runs in transformers")
        yield


def ours_ran(handle: Acceleration, *args: Any, **options: Any) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle.hf_model.generate(*args, **options)
    return not any("runs in transformers" in str(each.message) for each in caught)


@pytest.mark.usefixtures("quiet")
def test_the_tokens_are_the_same(hf_model: Any) -> None:
    cases: list[dict[str, Any]] = [
        {"max_new_tokens": 6},
        {"max_new_tokens": 6, "num_beams": 3, "num_return_sequences": 2},
        {"generation_config": transformers.GenerationConfig(max_new_tokens=4, num_beams=2)},
    ]
    expected = [hf_model.generate(IDS, **options) for options in cases]
    handle = decoding.accelerate(hf_model)
    for options, tokens in zip(cases, expected, strict=True):
        assert torch.equal(hf_model.generate(IDS, **options), tokens)
        assert torch.equal(hf_model.generate(input_ids=IDS, **options), tokens)
    found = hf_model.generate(IDS, max_new_tokens=3, return_dict_in_generate=True)
    assert isinstance(found, Output)
    hf_model.generation_config.max_new_tokens = 2
    assert hf_model.generate(IDS).shape[1] <= IDS.shape[1] + 2
    assert handle.model.generate(IDS).shape[1] <= IDS.shape[1] + 2


def test_it_is_undone(hf_model: Any) -> None:
    own = hf_model.generate
    decoding.accelerate(hf_model)
    assert hf_model.generate != own
    decoding.restore(hf_model)
    assert hf_model.generate == own and "generate" not in vars(hf_model)
    with pytest.raises(ValueError, match="is not accelerated"):
        decoding.restore(3)
    with pytest.raises(ValueError, match="is not accelerated"):
        decoding.restore(hf_model)
    with decoding.accelerate(hf_model) as first:
        second = decoding.accelerate(hf_model)  # in its place
        assert hf_model.generate == second.generate
        first.restore()
        assert hf_model.generate == second.generate
    decoding.restore(hf_model)
    assert hf_model.generate == own


def test_what_we_refuse_runs_in_transformers_and_is_told_once() -> None:
    hf_model = copy.deepcopy(reference("gpt2"))
    expected = hf_model.generate(IDS, max_new_tokens=4, prompt_lookup_num_tokens=None)
    decoding.accelerate(hf_model)
    embeds = hf_model.get_input_embeddings()(IDS)
    said = "this call runs in transformers: inputs_embeds=.* is not supported yet"
    with pytest.warns(UserWarning, match=said) as caught:
        for _ in range(2):
            found = hf_model.generate(inputs_embeds=embeds, max_new_tokens=4)
    assert torch.equal(found, expected[:, IDS.shape[1] :])
    assert len([each for each in caught if "runs in trans" in str(each.message)]) == 1
    [warning] = [each for each in caught if "runs in trans" in str(each.message)]
    assert warning.filename == __file__
    with pytest.warns(UserWarning, match="runs in transformers: the model is in training mode"):
        hf_model.train().generate(IDS, max_new_tokens=2)
    with warnings.catch_warnings():  # of transformers' own hooks, which such a call leaves there
        warnings.simplefilter("error")
        hf_model.eval()(IDS, output_attentions=True)
        assert any(module._forward_hooks for module in hf_model.modules())
        assert torch.equal(hf_model.generate(IDS, max_new_tokens=4), expected)
    hook = hf_model.eval().lm_head.register_forward_hook(lambda module, given, found: -found)
    with pytest.warns(UserWarning, match="runs in transformers: a module of the model has hooks"):
        found = hf_model.generate(IDS, max_new_tokens=4)
    assert not torch.equal(found, expected)
    hook.remove()
    with (
        pytest.warns(UserWarning, match="runs in transformers: generate.. has no option"),
        pytest.raises(ValueError, match="no_such_option"),  # transformers' own error
    ):
        hf_model.eval().generate(IDS, no_such_option=3)


def test_an_error_of_a_given_function_is_not_a_refusal() -> None:
    hf_model = copy.deepcopy(reference("gpt2"))
    decoding.accelerate(hf_model)
    calls = []

    def broken(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(ids)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="^broken$"):
        hf_model.generate(IDS, logits_processor=[broken], max_new_tokens=2)
    assert len(calls) == 1


@pytest.mark.usefixtures("quiet")
def test_changed_weights_are_read_again(hf_model: Any) -> None:
    decoding.accelerate(hf_model)
    before = hf_model.generate(IDS, max_new_tokens=6, suppress_tokens=[3])
    with torch.no_grad():
        for name, weight in hf_model.named_parameters():
            if "positions" not in name:
                weight.mul_(-0.5)
    found = hf_model.generate(IDS, max_new_tokens=6, suppress_tokens=[3])
    decoding.restore(hf_model)
    expected = hf_model.generate(IDS, max_new_tokens=6, suppress_tokens=[3])
    assert torch.equal(found, expected) and not torch.equal(before, expected)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_copies_are_accelerated_too(name: str) -> None:
    hf_model = reference.__wrapped__(name)  # a new one: transformers' hooks cannot be pickled
    decoding.accelerate(hf_model, threads=1)
    expected = hf_model.generate(IDS, max_new_tokens=5)
    for copied in (copy.deepcopy(hf_model), pickle.loads(pickle.dumps(hf_model))):
        handle = copied.generate.__self__
        assert isinstance(handle, Acceleration) and handle.hf_model is copied
        assert handle.arguments["threads"] == 1
        assert torch.equal(copied.generate(IDS, max_new_tokens=5), expected)


def test_what_cannot_be_accelerated() -> None:
    with pytest.raises(TypeError, match="takes a transformers model that generates, got Linear"):
        decoding.accelerate(torch.nn.Linear(2, 2))
    other = transformers.CpmAntForCausalLM  # a family that is not there
    config = transformers.CpmAntConfig(
        hidden_size=8, num_attention_heads=2, dim_head=4, dim_ff=8, num_hidden_layers=1
    )
    with pytest.raises(ValueError, match="'CpmAntForCausalLM' is not supported"):
        decoding.accelerate(other(config))


def test_transformers_arguments_are_as_we_take_them() -> None:
    names = list(inspect.signature(transformers.GenerationMixin.generate).parameters)
    assert tuple(names[1 : len(POSITIONAL) + 1]) == POSITIONAL


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Of the random gpt2: 60 words."""
    words = {f"w{i}": i for i in range(60)}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="w2", eos_token="w3", padding_side="left"
    )


TEXTS = ["w4 w5", "w6 w7 w8", "w9"]


@pytest.mark.usefixtures("quiet")
def test_in_a_pipeline(tokenizer: Any) -> None:
    hf_model = copy.deepcopy(reference("gpt2"))
    generator = transformers.pipeline("text-generation", model=hf_model, tokenizer=tokenizer)
    cases: list[dict[str, Any]] = [{}, {"num_beams": 3, "num_return_sequences": 2}]
    for options in cases:
        options = {"max_new_tokens": 5, "do_sample": False, **options}
        decoding.accelerate(hf_model)
        found = generator(TEXTS, batch_size=2, **options)
        decoding.restore(hf_model)
        assert found == generator(TEXTS, batch_size=2, **options)


@pytest.mark.usefixtures("quiet")
def test_with_datasets(tokenizer: Any) -> None:
    datasets = pytest.importorskip("datasets")
    hf_model = copy.deepcopy(reference("gpt2"))

    def complete(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        given = tokenizer(batch["text"], return_tensors="pt", padding=True)
        rows = hf_model.generate(**given, max_new_tokens=5, do_sample=False)
        return {"completed": tokenizer.batch_decode(rows)}

    data = datasets.Dataset.from_dict({"text": TEXTS})
    expected = data.map(complete, batched=True, batch_size=2, keep_in_memory=True)["completed"]
    decoding.accelerate(hf_model)
    found = data.map(complete, batched=True, batch_size=2, keep_in_memory=True)["completed"]
    assert list(found) == list(expected)


@pytest.mark.usefixtures("quiet")
def test_with_a_merged_adapter() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(reference("gpt2")), config).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.5)
    with pytest.raises(ValueError, match=r"not merged: pass what merge_and_unload\(\) returns"):
        decoding.accelerate(adapted)
    expected = adapted.generate(input_ids=IDS, max_new_tokens=6)
    merged = adapted.merge_and_unload()
    decoding.accelerate(merged)
    assert torch.equal(merged.generate(IDS, max_new_tokens=6), expected)
