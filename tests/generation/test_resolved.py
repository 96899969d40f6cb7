"""Options that were passed before are not resolved again, and nothing else is taken for them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers

import decoding
from decoding.generation import resolved as module
from decoding.generation.resolved import KEPT, ResolvedOptions, resolved
from tests.support.random_models import ours

IDS = [[12, 13, 14]]


def of(keywords: dict[str, Any], base: Any = None, **checkpoint: Any) -> ResolvedOptions:
    return resolved(keywords, base, checkpoint, ours("gpt2").spec)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4, "max_new_tokens": 7},
        {"eos_token_id": [3, 4], "bad_words_ids": [[5], [6, 7]], "sequence_bias": {(3,): 1.5}},
        {"do_sample": True, "temperature": [0.5, 0.7], "seed": np.array([1, 2])},
        {"stop_strings": ["a", "b"], "num_beams": None},
    ],
    ids=range(4),
)
def test_equal_options_are_known(options: dict[str, Any]) -> None:
    assert of(options) is of(copy.deepcopy(options))
    assert of({}, options) is of({}, copy.deepcopy(options))
    assert of({}, None, **options) is of({}, None, **copy.deepcopy(options))
    for base in (decoding.GenerationConfig(num_beams=3), transformers.GenerationConfig()):
        assert of(options, base) is of(options, copy.deepcopy(base))


def test_options_that_differ_are_others() -> None:
    found = [
        of({"num_beams": 4}),
        of({"num_beams": 5}),
        of({"num_beams": 4, "length_penalty": 0.5}),
        of({"num_beams": 4}, {"length_penalty": 0.25}),
        of({"num_beams": 4}, None, length_penalty=2.0),
    ]
    assert [each.config.num_beams for each in found] == [4, 5, 4, 4, 4]
    assert [each.config.length_penalty for each in found] == [1.0, 1.0, 0.5, 0.25, 2.0]


def test_values_that_are_equal_in_python_are_not_the_same() -> None:
    assert of({"num_beams": 1, "do_sample": True}).config.num_beams == 1
    for wrong in ({"num_beams": True, "do_sample": True}, {"num_beams": 1, "do_sample": 1}):
        with pytest.raises(TypeError):
            of(wrong)
    assert of({"eos_token_id": [1]}).config.eos_token_id == (1,)
    with pytest.raises(TypeError, match="eos_token_id must be a whole number, got True"):
        of({"eos_token_id": [True]})


def test_what_is_changed_in_place_is_seen() -> None:
    words, bias = [[5], [6, 7]], {(3,): 1.5}
    options: dict[str, Any] = {"bad_words_ids": words, "sequence_bias": bias}
    before = of(options)
    words[1].append(8)
    bias[3,] = -2.0
    assert of(options).config.bad_words_ids == ((5,), (6, 7, 8))
    assert of(options).config.sequence_bias == (((3,), -2.0),)
    assert before.config.bad_words_ids == ((5,), (6, 7))
    base = transformers.GenerationConfig(num_beams=2)
    assert of({}, base).config.num_beams == 2
    base.num_beams = 3
    assert of({}, base).config.num_beams == 3
    base.eos_token_id = [4]
    assert of({}, base).config.eos_token_id == (4,)
    base.eos_token_id.append(5)
    assert of({}, base).config.eos_token_id == (4, 5)


def test_a_models_own_options_that_change_are_seen() -> None:
    model = ours("gpt2")
    before = model.generate(IDS, eos_token_id=None, max_new_tokens=6)
    known = dict(model.generation_config)
    try:
        model.generation_config.num_return_sequences = 2
        model.generation_config.num_beams = 2
        assert model.generate(IDS, eos_token_id=None, max_new_tokens=6).shape == (2, 9)
    finally:
        model.generation_config.clear()
        model.generation_config.update(known)
    assert torch.equal(model.generate(IDS, eos_token_id=None, max_new_tokens=6), before)


def test_seeds_are_drawn_for_each_call() -> None:
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 12, "eos_token_id": None}
    model = ours("gpt2")
    torch.manual_seed(3)
    first, second = (model.generate(IDS, **options) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(model.generate(IDS, **options), first)
    one, other = (model.generate(IDS, seed=seed, **options) for seed in (1, 2))
    assert not torch.equal(one, other)
    assert torch.equal(model.generate(IDS, seed=1, **options), one)


def test_known_options_warn_and_raise_as_before() -> None:
    for _ in range(3):
        with pytest.warns(UserWarning, match="temperature=0.5 has no effect") as caught:
            ours("gpt2").generate(IDS, temperature=0.5, max_new_tokens=1)
        assert caught[0].filename == __file__
        with pytest.raises(ValueError, match="num_beams must be at least 1"):
            of({"num_beams": 0})
        with pytest.raises(ValueError, match="suppress_tokens holds 100000"):
            of({"suppress_tokens": [100000]})


def test_values_that_cannot_be_pickled_are_resolved_each_time() -> None:
    class Local:
        def tolist(self) -> int:
            return 3

    options = {"num_beams": Local()}
    first, second = of(options), of(options)
    assert first is not second and first.config == second.config
    assert first.config.num_beams == 3
    with pytest.raises(TypeError, match="num_beams must be a whole number"):
        of({"num_beams": lambda: 3})


def test_few_are_kept() -> None:
    for seed in range(2 * KEPT + 3):
        assert of({"seed": seed, "do_sample": True}).config.seed == seed
    assert len(module._known) <= KEPT
    long = {"suppress_tokens": [3] * 50_000}
    assert of(long) is not of(long), "it takes too much memory"


def test_what_one_model_takes_another_may_refuse() -> None:
    marian, gpt2 = ours("marian").spec, ours("gpt2").spec
    beams = {"num_beams": 2, "coverage_penalty": 1.0}
    assert resolved(beams, None, {}, marian).keep_attentions
    with pytest.raises(ValueError, match="a decoder-only model does not have"):
        resolved(beams, None, {}, gpt2)
    smaller = replace(gpt2, decoder=replace(gpt2.decoder, vocab=9))
    assert resolved({"suppress_tokens": [9]}, None, {}, gpt2).config.suppress_tokens == (9,)
    with pytest.raises(ValueError, match="suppress_tokens holds 9, the model's ids are 0 to 8"):
        resolved({"suppress_tokens": [9]}, None, {}, smaller)


def test_options_are_resolved_once() -> None:
    model, options = ours("gpt2"), {"num_beams": 3, "length_penalty": 0.123}
    with mock.patch.object(module, "resolved_anew", side_effect=module.resolved_anew) as anew:
        for ids in (IDS, [[5]], torch.tensor([[6, 7]])):
            model.generate(ids, max_new_tokens=2, **options)
        assert anew.call_count == 1
        model.generate(IDS, max_new_tokens=3, **options)
        assert anew.call_count == 2
