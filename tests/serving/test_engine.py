"""decoding.Engine gives what generate() gives for each sentence alone."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import decoding
from decoding.generation import resolved as known
from decoding.serving.planning import engine_limits
from decoding.serving.submission import check_fits
from tests.serving.engines import (
    FULL,
    SICK,
    assert_idle,
    assert_same,
    engine,
    outcome,
    sick,
    tight_engine,
)
from tests.support.grammar import tokenizer
from tests.support.random_models import ours

names = pytest.mark.parametrize("name", ["marian", "gpt2"])
SEARCHES: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5},
    {"do_sample": True, "seed": 6, "num_return_sequences": 3, "temperature": 0.7, "top_k": 9},
    {"do_sample": True, "seed": 7, "num_return_sequences": 8, "top_p": 0.8, "top_k": 0},
    {"do_sample": True, "seed": 8, "min_p": 0.1, "typical_p": 0.9},
    {"num_beams": 2},
    {"num_beams": 3, "num_return_sequences": 3, "early_stopping": True, "patience": 2.0},
    {"num_beams": 4, "length_penalty": 2.0, "renormalize_logits": True},
    {"num_beams": 8, "num_return_sequences": 4, "early_stopping": "never", "length_penalty": -0.5},
    {"num_beams": 5, "length_normalization": "gnmt", "diversity_rate": 0.5},
    {"num_beams": 3, "do_sample": True, "seed": 3, "temperature": 0.3},
    {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "num_return_sequences": 6},
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"eos_token_id": [3, 17, 20, 20]},
    {"eos_token_id": None},
    {"min_new_tokens": 4, "max_new_tokens": 9},
    {"max_new_tokens": 1},
    {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
    {"frequency_penalty": 0.5, "presence_penalty": 0.9},
    {"bad_words_ids": [[14], [15, 16]], "suppress_tokens": [20], "begin_suppress_tokens": [21, 22]},
    {"sequence_bias": {(12, 13): 3.0, (23,): -2.0}, "encoder_repetition_penalty": 1.3},
    {"forced_bos_token_id": 19, "forced_eos_token_id": [3, 5]},
    {"exponential_decay_length_penalty": (2, 1.3), "remove_invalid_values": True},
    {"stop_strings": ["ab", "c a"], "tokenizer": tokenizer},
    {"pad_token_id": 7},
]


def sentences(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 55, rng.integers(1, 12)).tolist() for _ in range(count)]


def calls() -> list[dict[str, Any]]:
    """Every search with every set of options."""
    return [
        {"max_new_tokens": 12, **search, **options} for options in OPTIONS for search in SEARCHES
    ]


@names
def test_requests_side_by_side_are_as_each_alone(name: str, device: str) -> None:
    """All searches and options at once, to the bit on the CPU."""
    model, asked = ours(name, device), calls()
    rows = sentences(len(asked))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        requests = [
            engine(name, device).submit(row, **options, **FULL)
            for row, options in zip(rows, asked, strict=True)
        ]
    for row, options, request in zip(rows, asked, requests, strict=True):
        expected = outcome(lambda: model.generate([row], **options, **FULL))  # noqa: B023
        assert_same(outcome(request.result), expected, device)
        assert request.done
    assert_idle(engine(name, device))


@names
def test_many_threads(name: str, device: str) -> None:
    model, failed = ours(name, device), list[Exception]()
    running = engine(name, device)

    def work(seed: int) -> None:
        for row in sentences(20, seed):
            options: dict[str, Any] = {"num_beams": 1 + len(row) % 4, "max_new_tokens": 10}
            try:
                found = running.submit(row, **options).result(60)
                assert_same(found, expected[tuple(row)], device)
            except Exception as error:
                failed.append(error)

    expected = {
        tuple(row): model.generate([row], num_beams=1 + len(row) % 4, max_new_tokens=10)
        for seed in range(8)
        for row in sentences(20, seed)
    }
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize(
    "given",
    [
        {"input_ids": [5, 6, 7]},
        {"input_ids": (5, 6, 7)},
        {"input_ids": [[5, 6, 7]]},
        {"input_ids": torch.tensor([5, 6, 7])},
        {"input_ids": torch.tensor([[5, 6, 7]])},
        {"input_ids": [torch.tensor(5), torch.tensor(6), torch.tensor(7)]},
        {"input_ids": np.array([5, 6, 7]), "attention_mask": np.array([1, 1, 1])},
        {"inputs": [5, 6, 7], "attention_mask": [1, 1, 1]},
        {"input_ids": [9, 9, 5, 6, 7], "attention_mask": [0, 0, 1, 1, 1]},
        {"input_ids": torch.tensor([9, 5, 6, 7]), "attention_mask": torch.tensor([[0, 1, 1, 1]])},
    ],
)
@names
def test_forms_of_a_sentence(name: str, given: dict[str, Any]) -> None:
    found = engine(name).submit(**given, max_new_tokens=8, num_beams=2).result()
    expected = ours(name).generate([[5, 6, 7]], max_new_tokens=8, num_beams=2)
    width = len(given.get("input_ids", [0, 0, 0])) - 3 if name == "gpt2" else 0
    given_width = found.shape[1] - expected.shape[1]
    assert torch.equal(found[:, given_width:], expected) and given_width in (width, 0)


def test_prompts_of_an_encoder_decoder() -> None:
    model = ours("marian")
    for prompt in ([59, 8, 9], [8], torch.tensor([[59, 4]])):
        found = engine("marian").submit([5, 6], decoder_input_ids=prompt, max_new_tokens=7).result()
        batch = prompt if isinstance(prompt, torch.Tensor) else [prompt]
        assert_same(found, model.generate([[5, 6]], decoder_input_ids=batch, max_new_tokens=7))


def test_texts_and_what_tokenizers_return() -> None:
    model = decoding.load("demo", device="cpu", dtype="float32", threads=1)
    with decoding.Engine(model) as demo:
        text = "Guten Morgen, hast du gut geschlafen?"
        expected = model.generate(text)
        for request in (
            demo.submit(text),
            demo.submit([text]),
            demo.submit(**model.tokenizer(text)),
            demo.submit(**model.tokenizer(text, return_tensors="pt")),
        ):
            assert_same(request.result(), expected)


def test_options_come_from_where_generate_takes_them() -> None:
    config = {"num_beams": 3, "max_new_tokens": 5}
    found = engine("gpt2").submit([5], generation_config=config, num_return_sequences=2).result()
    expected = ours("gpt2").generate([[5]], generation_config=config, num_return_sequences=2)
    assert_same(found, expected)
    torch.manual_seed(3)
    drawn = engine("gpt2").submit([5], do_sample=True, max_new_tokens=9).result()
    torch.manual_seed(3)
    assert_same(drawn, ours("gpt2").generate([[5]], do_sample=True, max_new_tokens=9))


@pytest.mark.gpu
def test_results_are_on_the_device_of_the_inputs() -> None:
    for place in ("cpu", "cuda"):
        ids = torch.tensor([5, 6, 7], device=place)
        searches: list[dict[str, Any]] = [{}, FULL]
        for more in searches:
            found = engine("gpt2", "cuda").submit(ids, max_new_tokens=5, **more).result()
            sequences = found if isinstance(found, torch.Tensor) else found.sequences
            assert sequences.device.type == place


WRONG: list[dict[str, Any]] = [
    {"input_ids": [5, 99]},
    {"input_ids": []},
    {"input_ids": [[]]},
    {"input_ids": [0.5]},
    {"input_ids": [5], "inputs": [5]},
    {"input_ids": [5], "attention_mask": [1, 1]},
    {"input_ids": [5, 6], "attention_mask": [0, 0]},
    {"input_ids": [5], "num_beam": 3},
    {"input_ids": [5], "num_beams": "3"},
    {"input_ids": [5], "num_beams": 0},
    {"input_ids": [5], "num_return_sequences": 2},
    {"input_ids": [5], "max_new_tokens": 99},
    {"input_ids": [5], "max_new_tokens": [4, 5]},
    {"input_ids": [5], "stop_strings": "a"},
    {"input_ids": [5], "bad_words_ids": [[99]]},
    {"input_ids": [5], "assistant_model": 3},
    {"input_ids": [5], "generation_config": 3},
    {"input_ids": [5], "num_beams": 4, "num_beam_groups": 3},
    {"input_ids": [5], "cancel": 3},
    {"input_ids": [5], "decoder_input_ids": [99]},
]


@names
@pytest.mark.parametrize("given", WRONG, ids=str)
def test_submit_raises_what_generate_raises(name: str, given: dict[str, Any]) -> None:
    batch = dict(given)
    for key in ("input_ids", "inputs", "attention_mask", "decoder_input_ids"):
        if key in batch and batch[key] != [[]]:
            batch[key] = [batch[key]]
    expected = outcome(lambda: ours(name).generate(**batch))
    found = outcome(lambda: engine(name).submit(**given))
    assert isinstance(found, (TypeError, ValueError, NotImplementedError))
    assert type(found) is type(expected) and str(found) == str(expected)


def test_options_that_change_nothing_are_taken() -> None:
    off: dict[str, Any] = dict.fromkeys(("logits_processor", "streamer", "cancel", "max_time"))
    off |= {"output_scores": False, "guidance_scale": 1.0, "progress": False}
    found = engine("gpt2").submit([5, 6], max_new_tokens=5, **off).result()
    assert_same(found, ours("gpt2").generate([[5, 6]], max_new_tokens=5))


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"priority": 0.5}, ValueError, "priority must be a whole number"),
        ({"priority": "high"}, TypeError, "priority must be a whole number"),
        ({"deadline": 0}, ValueError, "deadline must be a finite number greater than 0"),
        ({"deadline": "1"}, TypeError, "deadline must be a number"),
        ({"salt": -1}, ValueError, "salt must be at least 0"),
        ({"stream": 1}, TypeError, "stream must be True or False"),
        ({"stream": True, "num_beams": 2, "num_return_sequences": 2}, ValueError, "best row alone"),
    ],
)
def test_arguments_of_submit(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        engine("gpt2").submit([5, 6], max_new_tokens=5, **options)


def test_one_sentence() -> None:
    for ids in ([[5], [6]], torch.tensor([[5], [6]])):
        with pytest.raises(ValueError, match="takes one sentence, and these are 2"):
            engine("gpt2").submit(ids, max_new_tokens=5)


def test_what_is_no_model() -> None:
    wrong: Any = "demo"
    with pytest.raises(TypeError, match=r"decoding\.load\(\) has made, got str"):
        decoding.Engine(wrong)


def test_a_request_that_can_never_fit_is_refused(device: str) -> None:
    """At once, with pages and bytes; others go on."""
    model = ours("gpt2", device)
    with tight_engine(model, rows=8, pages=8) as small:
        row = list(range(4, 34))
        fits = small.submit(row, max_new_tokens=4)
        with pytest.raises(decoding.Error, match=r"(?s)pages.*bytes"):
            small.submit(row, max_new_tokens=18, num_beams=8)
        assert_same(fits.result(), model.generate([row], max_new_tokens=4), device)
        assert_idle(small)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_beams": 9}, "beams=9, and the engine has room for 8: lower num_beams"),
        (
            {"eos_token_id": [1] * 30, "num_beams": 8},
            "candidates=248, .* fewer ids as eos_token_id",
        ),
        (
            {"num_beams": 8, "patience": 9.0, "early_stopping": True},
            "finished=72, .* lower patience",
        ),
        ({"suppress_tokens": [5] * 20000}, r"words=\d+, .* pass fewer ids in lists"),
    ],
)
def test_a_request_beyond_the_limits_of_one(options: dict[str, Any], words: str) -> None:
    with decoding.Engine(ours("gpt2"), max_requests=8) as small:
        with pytest.raises(decoding.Error, match=f"this request needs {words}.*give the engine"):
            small.submit([5, 6], max_new_tokens=4, **options)


def test_lengths_beyond_those_of_an_engine() -> None:
    """Which are the model's own only where there is memory for them."""
    model = ours("marian")
    limits = engine_limits(model.bind_engine(), model.spec, model.place, None, None)
    limits = replace(limits, source=8, prompt=3, target=9)
    given: dict[str, dict[str, Any]] = {
        "source=9, .* shorten or split the text": {"input_ids": [[5] * 9]},
        "prompt=4, .* shorten the prompt": {"input_ids": [[5]], "decoder_input_ids": [[5] * 3]},
        "target=10, .* lower max_new_tokens": {"input_ids": [[5]], "max_new_tokens": 10},
    }
    for words, arguments in given.items():
        [sub] = model.prepare(**({"max_new_tokens": 9} | arguments)).sub_batches
        with pytest.raises(decoding.Error, match=f"this request needs {words}"):
            check_fits(sub.request, limits)
    [sub] = model.prepare([[5] * 8], max_new_tokens=9).sub_batches
    check_fits(sub.request, limits)


def test_a_fault_is_its_own_requests(device: str) -> None:
    """NaN in one request: the others do not notice."""
    model = sick("gpt2", device)
    rows = [row if i % 3 else [*row, SICK] for i, row in enumerate(sentences(30))]
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": None}
    options |= {"bad_words_ids": [[SICK]]}
    searches: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"do_sample": True, "seed": 3}]
    with decoding.Engine(model) as half_sick:
        for search in searches:
            requests = [half_sick.submit(row, **options, **search, **FULL) for row in rows]
            for row, request in zip(rows, requests, strict=True):
                if row[-1] == SICK:
                    with pytest.raises(decoding.Error, match="not finite"):
                        request.result()
                expected = outcome(lambda: model.generate([row], **options, **search, **FULL))  # noqa: B023
                assert_same(outcome(request.result), expected, device)
        assert_idle(half_sick)


def test_statistics() -> None:
    before = engine("gpt2").stats()
    engine("gpt2").submit([5, 6, 7], max_new_tokens=9, eos_token_id=None).result()
    after = engine("gpt2").stats()
    names = {"running", "waiting", "pages_used", "pages_total", "steps", "tokens", "seconds"}
    assert names <= after.keys()
    assert after["tokens"] - before["tokens"] == 9 and after["steps"] - before["steps"] >= 9
    assert after["pages_total"] == before["pages_total"] > 0


def test_known_options_are_not_resolved_again() -> None:
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 5, "length_penalty": 0.456}
    prompts = [[12, 13, 14], torch.tensor([7, 8]), np.array([[9, 10, 11, 12]])]
    with mock.patch.object(known, "resolved_anew", side_effect=known.resolved_anew) as anew:
        requests = [engine("gpt2").submit(prompt, **options) for prompt in prompts]
        assert anew.call_count == 1
        for prompt, request in zip(prompts, requests, strict=True):
            alone = ours("gpt2").generate(torch.as_tensor(prompt).reshape(1, -1), **options)
            assert_same(request.result(), alone)
        assert anew.call_count == 1


def test_samples_without_a_seed_differ() -> None:
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 12, "eos_token_id": None}
    first, second = (engine("gpt2").submit([12, 13], **options).result() for _ in range(2))
    assert not torch.equal(first, second)
