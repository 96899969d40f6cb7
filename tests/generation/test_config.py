"""Options of generate(): defaults, precedence, None, and everything that is refused."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from decoding.generation.batching import TokenBatch
from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.generation.lengths import lengths
from decoding.generation.request import drawn_seed
from decoding.generation.resolve import resolve
from decoding.generation.strategies import choose
from decoding.generation.unsupported import ARGUMENTS, METADATA, TUNING, UNSUPPORTED

GROUPS = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}


def test_defaults_are_those_of_transformers() -> None:
    config = resolve({}, None, {})
    theirs = transformers.GenerationConfig._get_default_generation_params()
    for name in OPTIONS:
        if theirs.get(name) is not None and name != "max_length":
            assert getattr(config, name) == theirs[name], name
    assert config.max_length is None  # theirs is 20, but counts as 20 new tokens: see `lengths`
    assert config.seed is None and config.eos_token_id == ()


def test_what_a_checkpoint_says_of_what_is_off_is_not_read() -> None:
    unread = {"temperature": 0.0, "top_p": 0, "typical_p": 2.0, "num_assistant_tokens": 7}
    assert resolve({}, None, unread).temperature == 1.0
    with pytest.raises(
        ValueError, match=r"temperature .* \(from the checkpoint's generation_config"
    ):
        resolve({"do_sample": True}, None, unread)
    with pytest.raises(ValueError, match="temperature"):
        resolve({}, None, unread | {"do_sample": True})
    with pytest.raises(ValueError, match=r"no_repeat_ngram_size .* \(from the checkpoint's"):
        resolve({}, None, {"no_repeat_ngram_size": -1})
    assert resolve({}, None, {"top_k": 7, "penalty_alpha": 0.5}).top_k == 7


def test_every_option_of_transformers_is_known() -> None:
    theirs = set(vars(transformers.GenerationConfig())) - set(METADATA)
    assert theirs <= set(OPTIONS) | set(UNSUPPORTED)
    arguments = set(inspect.signature(transformers.GenerationMixin.generate).parameters)
    assert arguments - {"self", "kwargs"} <= set(UNSUPPORTED) | set(ARGUMENTS)


def test_none_of_transformers_own_defaults_is_refused() -> None:
    values = transformers.GenerationConfig._get_default_generation_params()
    resolve({name: value for name, value in values.items() if name != "max_length"}, None, values)


def test_precedence() -> None:
    checkpoint = {"num_beams": 6, "length_penalty": 0.5, "max_length": 99, "top_k": 7}
    base = GenerationConfig(num_beams=4, length_penalty=2.0)
    config = resolve({"num_beams": 3}, base, checkpoint)
    assert (config.num_beams, config.length_penalty, config.max_length) == (3, 2.0, 99)
    assert resolve({}, {"num_beams": 4, "max_length": None}, checkpoint).max_length == 99
    theirs = transformers.GenerationConfig(num_beams=4, early_stopping=True)
    config = resolve({}, theirs, checkpoint)
    assert (config.num_beams, config.early_stopping, config.top_k) == (4, True, 7)


def test_a_config_of_misspelt_options() -> None:
    with pytest.raises(TypeError, match=r"GenerationConfig\(\) has no .* 'num_beams'\?$"):
        GenerationConfig(num_beam=4)  # type: ignore[call-arg]


def test_keyword_none_switches_off() -> None:
    checkpoint = {
        "eos_token_id": 3,
        "top_k": 7,
        "num_beams": 6,
        "max_length": 9,
        "min_length": 5,
        "bad_words_ids": [[4]],
        "no_repeat_ngram_size": 2,
    }
    off = dict.fromkeys(checkpoint)
    config = resolve(off, None, checkpoint)
    assert config.eos_token_id == () and config.bad_words_ids == ()
    assert (config.top_k, config.num_beams, config.min_length) == (0, 1, 0)
    assert config.max_length is None
    assert resolve({"top_k": None}, None, {}).top_k == 0
    assert resolve({}, {"top_k": None}, {}).top_k == 50


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("eos_token_id", 2, (2,)),
        ("eos_token_id", [2, 5], (2, 5)),
        ("eos_token_id", torch.tensor([2, 5]), (2, 5)),
        ("eos_token_id", -1, (-1,)),
        ("forced_eos_token_id", 4, (4,)),
        ("temperature", 2, 2.0),
        ("num_beams", 3.0, 3),
        ("num_beams", torch.tensor(3), 3),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("length_penalty", -1, -1.0),
        ("bad_words_ids", [[4], (6,)], ((4,), (6,))),
        ("early_stopping", "never", "never"),
        ("use_cache", False, False),
        ("max_new_tokens", [3, 4.0], (3, 4)),
        ("temperature", torch.tensor([0.5, 2.0]), (0.5, 2.0)),
        ("temperature", torch.tensor(0.5), 0.5),
        ("top_k", (0, 5), (0, 5)),
        ("seed", [7, 2**64 - 1], (7, 2**64 - 1)),
        ("forced_bos_token_id", np.array([3, 4]), (3, 4)),
        ("bad_words_ids", [[4, 5], torch.tensor([6])], ((4, 5), (6,))),
        ("sequence_bias", {(4,): 2, (5, 6): -1.5}, (((4,), 2.0), ((5, 6), -1.5))),
        ("sequence_bias", [[[4], 2.0], [[4], -math.inf]], (((4,), -math.inf),)),
        ("force_words_ids", [[4, 5], [[6], [7, 8]]], (((4, 5),), ((6,), (7, 8)))),
        ("exponential_decay_length_penalty", [3, 1], (3, 1.0)),
        ("suppress_tokens", [3, 4], (3, 4)),
        ("stop_strings", "end", ("end",)),
        ("stop_strings", ["a", "b c"], ("a", "b c")),
        ("length_normalization", "gnmt", "gnmt"),
        ("max_time", 0, 0.0),
        ("eta_cutoff", 0.5, 0.5),
    ],
)
def test_accepted(name: str, value: Any, expected: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beams = {"num_beams": 2} if name == "force_words_ids" else {}
        got = getattr(resolve({name: value, **beams}, None, {}), name)
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(
    "name, value, error, words",
    [
        ("num_beam", 4, TypeError, "num_beams"),
        ("temprature", 1.0, TypeError, "temperature"),
        ("max_tokens", 1.0, TypeError, "max_"),
        ("attention_masks", 1, TypeError, "attention_mask"),
        ("watermarking_config", {}, NotImplementedError, "watermarking_config"),
        ("assistant_model", object(), NotImplementedError, "assistant_model"),
        ("logits_processor", [len], TypeError, "argument of generate"),
        ("num_beams", 0, ValueError, "at least 1, got 0"),
        ("num_beams", -1, ValueError, "at least 1, got -1"),
        ("num_beams", 2.5, ValueError, "whole number, got 2.5"),
        ("num_beams", True, TypeError, "whole number"),
        ("num_beams", "4", TypeError, "whole number"),
        ("num_return_sequences", 0, ValueError, "at least 1"),
        ("max_new_tokens", 0, ValueError, "at least 1"),
        ("max_new_tokens", -3, ValueError, "at least 1"),
        ("max_length", 0, ValueError, "at least 1"),
        ("min_length", -1, ValueError, "at least 0"),
        ("early_stopping", "maybe", ValueError, "never"),
        ("early_stopping", 1, ValueError, "never"),
        ("temperature", 0, ValueError, "greater than 0"),
        ("temperature", -1.0, ValueError, "greater than 0"),
        ("temperature", float("nan"), ValueError, "finite"),
        ("temperature", float("inf"), ValueError, "finite"),
        ("temperature", "hot", TypeError, "number"),
        ("top_k", -1, ValueError, "at least 0"),
        ("top_p", 0, ValueError, "greater than 0 and at most 1, got 0"),
        ("top_p", -0.1, ValueError, "greater than 0"),
        ("top_p", 1.5, ValueError, "at most 1"),
        ("length_penalty", float("nan"), ValueError, "finite"),
        ("seed", -1, ValueError, "at least 0"),
        ("seed", 2**64, ValueError, "at most"),
        ("do_sample", "yes", TypeError, "True or False"),
        ("bad_words_ids", [], ValueError, "not empty"),
        ("bad_words_ids", [[]], ValueError, "empty"),
        ("bad_words_ids", [3], ValueError, "lists of ids"),
        ("max_new_tokens", [3, 0], ValueError, "at least 1, got 0"),
        ("max_new_tokens", [], ValueError, "one for each row"),
        ("temperature", [[0.5]], TypeError, "a number"),
        ("top_h", 0, ValueError, "greater than 0 and at most 1"),
        ("min_p", -0.1, ValueError, "at least 0 and at most 1"),
        ("typical_p", 0, ValueError, "greater than 0 and at most 1"),
        ("epsilon_cutoff", 1, ValueError, "at least 0 and less than 1"),
        ("eta_cutoff", 1.0, ValueError, "at least 0 and less than 1"),
        ("repetition_penalty", 0, ValueError, "greater than 0"),
        ("encoder_repetition_penalty", -1, ValueError, "greater than 0"),
        ("frequency_penalty", float("nan"), ValueError, "finite"),
        ("presence_penalty", "a", TypeError, "a number"),
        ("no_repeat_ngram_size", -1, ValueError, "at least 0"),
        ("guidance_scale", float("inf"), ValueError, "finite"),
        ("sequence_bias", {}, ValueError, "not empty"),
        ("sequence_bias", {(): 1.0}, ValueError, "none of them empty"),
        ("sequence_bias", {3: 1.0}, ValueError, "lists of ids"),
        ("sequence_bias", [[[3], 1.0, 2]], ValueError, r"\[ids, bias\]"),
        ("sequence_bias", {(3,): float("nan")}, ValueError, "finite"),
        ("sequence_bias", {(3,): "much"}, TypeError, "a number"),
        ("force_words_ids", [], ValueError, "not empty"),
        ("force_words_ids", [[]], ValueError, "empty"),
        ("force_words_ids", [[[4], [4, 5]]], ValueError, "begins another"),
        ("exponential_decay_length_penalty", 3, ValueError, "start, factor"),
        ("exponential_decay_length_penalty", (-1, 2.0), ValueError, "at least 0"),
        ("stop_strings", [], ValueError, "a string or a list"),
        ("stop_strings", ["a", ""], ValueError, "none empty"),
        ("length_normalization", "fairseq", ValueError, "gnmt"),
        ("patience", 0, ValueError, "greater than 0"),
        ("coverage_penalty", -1, ValueError, "at least 0"),
        ("penalty_alpha", 1.5, ValueError, "at most 1"),
        ("max_time", -1, ValueError, "at least 0"),
    ],
)
def test_refused(name: str, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        resolve({name: value}, None, {})
    if error is not TypeError or name in OPTIONS:
        with pytest.raises(error, match=words):
            resolve({}, {name: value}, {})


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"num_return_sequences": 2}, ValueError, "greedy"),
        ({"num_return_sequences": 4, "num_beams": 3}, ValueError, "num_beams=3"),
        ({"num_beams": 2, "early_stopping": True, "patience": 0.2}, ValueError, "patience=0.2"),
        ({"num_beam_groups": 2}, ValueError, "divide num_beams=1"),
        ({"num_beam_groups": 2, "num_beams": 3}, ValueError, "divide num_beams=3"),
        ({"num_beam_groups": 2, "num_beams": 4}, ValueError, "diversity_penalty above 0"),
        ({**GROUPS, "do_sample": True}, ValueError, "do_sample"),
        ({**GROUPS, "diversity_rate": 0.5}, ValueError, "diversity_rate"),
        ({**GROUPS, "patience": 2}, ValueError, "patience"),
        ({**GROUPS, "force_words_ids": [[4]]}, ValueError, "num_beam_groups"),
        ({**GROUPS, "renormalize_logits": True}, ValueError, "renormalize_logits"),
        ({"force_words_ids": [[4]]}, ValueError, "num_beams above 1"),
        (
            {"force_words_ids": [[4, 7]], "num_beams": 2, "eos_token_id": 7},
            ValueError,
            "end token 7",
        ),
        ({"force_words_ids": [[4]], "num_beams": 2, "do_sample": True}, ValueError, "do_sample"),
        ({"diversity_rate": 1, "num_beams": 2, "do_sample": True}, ValueError, "diversity_rate"),
        ({"forced_bos_token_id": 4, "suppress_tokens": [4, 5]}, ValueError, "bans .4."),
        ({"forced_eos_token_id": [4, 5], "suppress_tokens": [4, 5]}, ValueError, "bans .4, 5."),
    ],
)
def test_contradictions(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        resolve(options, None, {})


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_there_yet_is_refused_wherever_it_stands(name: str) -> None:
    value = "something"
    places: list[Any] = [({name: value}, None, {}), ({}, {name: value}, {})]
    if name in TUNING:
        resolve({}, None, {name: value})
    else:
        places.append(({}, None, {name: value}))
    for keywords, base, checkpoint in places:
        with pytest.raises(NotImplementedError, match=f"{name}='something'.*{name}=None"):
            resolve(keywords, base, checkpoint)
    resolve({name: None}, None, {name: value})
    for state in UNSUPPORTED[name]:
        resolve({name: state}, None, {name: value})


def test_a_checkpoint_may_hold_what_is_no_option() -> None:
    resolve({}, None, {"transformers_version": "5.23.0", "of_our_trainer": 1})
    resolve({}, transformers.GenerationConfig(of_our_trainer=1), {})
    resolve({}, None, {"cache_implementation": "hybrid"})  # Gemma 2
    with pytest.raises(NotImplementedError, match="cache_implementation='quantized'"):
        resolve({}, None, {"cache_implementation": "quantized"})
    with pytest.raises(TypeError, match="of_our_trainer"):
        resolve({}, {"of_our_trainer": 1}, {})
    with pytest.raises(TypeError, match="generation_config"):
        resolve({}, 3, {})
    assert set(ARGUMENTS).isdisjoint(OPTIONS)


@pytest.mark.parametrize(
    "options, warning",
    [
        ({"temperature": 0.5}, "do_sample"),
        ({"top_k": 3}, "do_sample"),
        ({"top_p": 0.5}, "do_sample"),
        ({"seed": 1}, "do_sample"),
        ({"length_penalty": 0.5}, "num_beams"),
        ({"early_stopping": True}, "num_beams"),
        ({"output_scores": True}, "return_dict_in_generate"),
        ({"max_length": 9, "max_new_tokens": 3}, "max_new_tokens=3 wins"),
        ({"min_length": 9, "min_new_tokens": 3}, "min_new_tokens=3 wins"),
        ({"top_k": 50}, None),
        ({"temperature": 1}, None),
        ({"temperature": 0.5, "do_sample": True}, None),
        ({"min_p": 0.1}, "do_sample"),
        ({"typical_p": 0.5}, "do_sample"),
        ({"diversity_rate": 0.5}, "num_beams"),
        ({"diversity_penalty": 0.5}, "num_beam_groups"),
        ({"patience": 2, "num_beams": 2}, "early_stopping=True"),
        ({"patience": 2}, "num_beams"),
        ({"penalty_alpha": 0.5, "num_beams": 2}, "greedy"),
        ({"penalty_alpha": 0.5, "top_k": 4}, None),
        ({"output_logits": True}, "return_dict_in_generate"),
        ({"length_penalty": 0.5, "num_beams": 2}, None),
    ],
)
def test_warnings_for_what_the_caller_gave(options: dict[str, Any], warning: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resolve(options, None, {})
        assert [warning in str(w.message) for w in caught if warning] == [True] * len(caught)
        assert len(caught) == (warning is not None)
        resolve({}, None, {k: v for k, v in options.items() if k != "max_new_tokens"})
        assert len(caught) == (warning is not None), "a checkpoint's values do not warn"


def prompts(width: int, *tokens: int) -> TokenBatch:
    """So many tokens each, padded on the left."""
    mask = np.arange(width) >= width - np.array(tokens)[:, None]
    return TokenBatch(np.zeros(mask.shape, np.int64), mask)


def test_lengths_of_each_row() -> None:
    config = resolve({"max_new_tokens": [3, 9, 40]}, None, {})
    found = lengths(config, prompts(5, 5, 2, 1), 40)
    assert found.max_new == (3, 9, 40)
    with pytest.raises(ValueError, match="40 new tokens behind a prompt of 2.*=39 or less"):
        lengths(config, prompts(5, 5, 1, 2), 40)


@pytest.mark.parametrize(
    "options, width, expected",
    [
        ({}, 1, (20, 0)),
        ({}, 30, (10, 0)),  # capped at the model's 40 positions
        ({"max_length": 12}, 5, (7, 0)),
        ({"max_length": 12, "max_new_tokens": 3}, 5, (3, 0)),
        ({"max_new_tokens": 9, "min_length": 8}, 5, (9, 3)),
        ({"max_new_tokens": 9, "min_length": 3}, 5, (9, 0)),
        ({"max_new_tokens": 9, "min_length": 8, "min_new_tokens": 1}, 5, (9, 1)),
        ({"max_new_tokens": 41}, 1, None),
        ({"max_new_tokens": 40}, 1, (40, 0)),
        ({"max_length": 5}, 5, None),
        ({}, 40, None),
    ],
)
def test_lengths(options: dict[str, Any], width: int, expected: tuple[int, int] | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = resolve(options, None, {})
    if expected is None:
        with pytest.raises(ValueError, match="max_length|positions"):
            lengths(config, prompts(width, width, 1), 40)
    else:
        found = lengths(config, prompts(width, width, 1), 40)
        assert (found.max_new, found.min_new) == expected


def test_a_minimum_above_the_maximum_warns() -> None:
    config = resolve({"max_new_tokens": 3, "min_new_tokens": 5}, None, {})
    with pytest.warns(UserWarning, match="minimum of 5"):
        assert lengths(config, prompts(1, 1), 40).min_new == 5


def test_a_missing_seed_follows_torch() -> None:
    torch.manual_seed(5)
    first = [drawn_seed() for _ in range(3)]
    torch.manual_seed(5)
    assert [drawn_seed() for _ in range(3)] == first and len(set(first)) == 3
    assert all(0 <= seed < 2**64 for seed in first)


@pytest.mark.parametrize(
    "options, rows, returned, competing, max_finished",
    [
        ({}, 1, 1, False, 0),
        ({"do_sample": True, "num_return_sequences": 3}, 3, 3, False, 0),
        ({"num_beams": 4, "num_return_sequences": 2}, 4, 2, True, 4),
        ({"num_beams": 4, "patience": 1.6, "early_stopping": True}, 4, 1, True, 6),
        ({"num_beams": 4, "patience": 2}, 4, 1, True, 4),
        (GROUPS, 4, 1, True, 4),
    ],
)
def test_strategies(
    options: dict[str, Any], rows: int, returned: int, competing: bool, max_finished: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = choose(resolve(options, None, {}))
    assert (found.rows_per_sentence, found.returned, found.competing, found.max_finished) == (
        rows,
        returned,
        competing,
        max_finished,
    )
