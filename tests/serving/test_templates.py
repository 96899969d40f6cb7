"""Requests whose options have come before, of which only the ids are read: they give, raise and
warn what generate() does."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import decoding
from decoding import _C
from decoding.serving.templates import Templates
from tests.serving.engines import FULL, assert_same, engine, outcome
from tests.support.grammar import tokenizer
from tests.support.random_models import ours

NAMES = ["marian", "marian-two-tables", "gpt2", "gpt2-pad"]
names = pytest.mark.parametrize("name", NAMES)
MOST: dict[str, Any] = {"max_new_tokens": 8}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5},
    {"do_sample": True, "top_k": 9},
    {"do_sample": True, "seed": 4, "num_return_sequences": 3},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    {"encoder_repetition_penalty": 1.3, "num_beams": 2},
    {"bad_words_ids": [[14], [15, 16]], "suppress_tokens": [20]},
    {"min_new_tokens": 5, "eos_token_id": [3, 17, 20]},
    {"min_length": 6},
    {"forced_bos_token_id": 19},
    {"max_new_tokens": None, "max_length": 14},
    {"stop_strings": ["ab"], "tokenizer": tokenizer},
    {"max_time": 0, "num_beams": 2},
    {"max_new_tokens": [7]},
    {"do_sample": True, "seed": 4, "temperature": [0.3]},
]


KINDS: list[Callable[[list[int]], Any]] = [
    list,
    lambda row: [row],
    tuple,
    lambda row: np.array(row, np.int32),
    lambda row: torch.tensor([row]),
]


@contextmanager
def prepared_calls() -> Iterator[list[Any]]:
    """The calls that are prepared as those of generate()."""
    calls: list[Any] = []
    plain = decoding.Model.prepare

    def prepare(*args: Any, **options: Any) -> Any:
        calls.append(plain(*args, **options))
        return calls[-1]

    with mock.patch.object(decoding.Model, "prepare", prepare):
        yield calls


@names
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "plain")
@pytest.mark.parametrize("more", [{}, FULL], ids=["tokens", "all"])
def test_the_same_as_alone(name: str, options: dict[str, Any], more: dict[str, Any]) -> None:
    """Of any length, and in any form."""
    options, served, model = MOST | options | more, engine(name), ours(name)
    rows = [[12, 13, 14, 15, 16, 17], [13], [5, 14, 13], [5, 5], [21, 5, 7, 8, 9, 10, 11], [22]]
    for i, (row, kind) in enumerate(zip(rows * 2, itertools.cycle(KINDS))):
        for mask in (None, torch.ones(len(row), dtype=torch.int64)):
            torch.manual_seed(i)
            found = outcome(lambda: served.submit(kind(row), mask, **options).result())  # noqa: B023
            torch.manual_seed(i)
            masks = None if mask is None else mask[None]
            alone = outcome(
                lambda: model.generate([row], attention_mask=masks, **options)  # noqa: B023
            )
            assert_same(found, alone)


@names
def test_only_the_first_is_prepared_and_what_is_longer(name: str) -> None:
    options: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 6, "length_penalty": 0.123}
    with prepared_calls() as calls:
        for length in (4, 4, 2, 3, 1, 6, 5, 6, 4):
            engine(name).submit(list(range(20, 20 + length)), **options)
        assert [int((call.source or call.prompt).width) for call in calls] == [4, 6]
        engine(name).submit([5, 20], [1, 1], **options)
        engine(name).submit(torch.tensor([[20, 21]]), torch.tensor([[1, 1]]), **options)
        assert len(calls) == 2


WRONG: list[Any] = [
    [12, 99],
    [12, -1],
    [12, 2**80],
    [],
    [[]],
    [[12], [13]],
    [[[12]]],
    [0.5],
    [12, None],
    [True, False],
    np.array([0.5]),
    np.array(12),
    np.zeros((1, 0), np.int64),
    np.zeros((1, 1, 1), np.int64),
    np.array([12, 99], np.uint64),
    torch.tensor([0.5]),
    torch.tensor([1.0], dtype=torch.bfloat16),
    [5] * 60,
    {"input_ids": [12]},
    b"ab",
]


@names
@pytest.mark.parametrize("ids", WRONG, ids=str)
def test_what_is_wrong_raises_what_it_raises_at_first(name: str, ids: Any) -> None:
    """For [5] * 60 there are no positions."""
    new: dict[str, Any] = {"max_new_tokens": 6, "length_penalty": 0.2, "num_beams": 2}
    with mock.patch.object(Templates, "prepared", return_value=None):
        first = outcome(lambda: engine(name).submit(ids, **new))
    engine(name).submit([12, 13, 14], **new)
    found = outcome(lambda: engine(name).submit(ids, **new))
    assert isinstance(found, Exception)
    assert type(found) is type(first) and str(found) == str(first)


@names
@pytest.mark.parametrize(
    "mask", [[1], [1, 1, 1, 1], [0, 0, 0], [1, 1, 2], [1.0, 1.0, 1.0], [None] * 3]
)
def test_masks(name: str, mask: Any) -> None:
    engine(name).submit([12, 13, 14], **MOST)
    found = outcome(lambda: engine(name).submit([12, 13, 14], mask, **MOST).result())
    expected = outcome(lambda: ours(name).generate([[12, 13, 14]], attention_mask=[mask], **MOST))
    assert_same(found, expected)


@names
def test_masked_tokens(name: str) -> None:
    engine(name).submit([12, 13, 14], **MOST)
    found = engine(name).submit([12, 13, 14], [0, 1, 1], **MOST).result()
    expected = ours(name).generate([[12, 13, 14]], attention_mask=[[0, 1, 1]], **MOST)
    assert_same(found, expected)


def test_prompts_of_their_own_are_nobody_elses() -> None:
    options: dict[str, Any] = MOST | {"length_penalty": 0.3, "num_beams": 2}
    for prompt in ([8, 9], None, [7], None):
        given: dict[str, Any] = {} if prompt is None else {"decoder_input_ids": [prompt]}
        found = engine("marian").submit([12, 13], **given, **options).result()
        assert_same(found, ours("marian").generate([[12, 13]], **given, **options))


def test_room_for_masked_tokens_is_none_for_others() -> None:
    """Of 48 positions, which a masked token does not take."""
    ids, options = [12] * 40, dict[str, Any](max_new_tokens=12)
    for mask in ([0] * 39 + [1], None):
        found = outcome(lambda: engine("gpt2").submit(ids, mask, **options).result())  # noqa: B023
        masks = None if mask is None else [mask]
        alone = outcome(lambda: ours("gpt2").generate([ids], attention_mask=masks, **options))  # noqa: B023
        assert_same(found, alone)
    assert isinstance(found, ValueError)


def test_ids_that_the_decoder_reads_too() -> None:
    model = ours("marian-two-tables")
    most = model.spec.decoder.vocab
    assert most < model.spec.encoder.vocab
    options: dict[str, Any] = MOST | {"encoder_repetition_penalty": 1.2}
    for ids in ([12, 13], [12, most]):
        found = outcome(lambda: engine("marian-two-tables").submit(ids, **options).result())  # noqa: B023
        assert_same(found, outcome(lambda: model.generate([ids], **options)))  # noqa: B023
    assert isinstance(found, ValueError)


@names
@pytest.mark.parametrize("options", [{}, {"logits_processor": [lambda ids, scores: scores]}])
def test_arrays_may_be_changed_at_once(name: str, options: dict[str, Any]) -> None:
    """Also that of an engine's first request, and that of one that steps alone."""
    expected = ours(name).generate([[12, 13, 14]], **MOST)
    for array in (np.array, torch.tensor):
        with decoding.Engine(ours(name)) as fresh:
            for _ in range(3):
                given = array([12, 13, 14])
                request = fresh.submit(given, **MOST, **options)
                given[:] = 20
                assert_same(request.result(), expected)


def test_options_that_lie_with_the_model() -> None:
    """Its own ones may be changed, and its tokenizer finds stop strings."""
    model = decoding.load("demo", device="cpu", threads=1)
    with decoding.Engine(model) as demo:
        for ids in ([5, 6, 0], [7, 8, 0]):
            found = demo.submit(ids, stop_strings=["e", "n"]).result()
            assert_same(found, model.generate([ids], stop_strings=["e", "n"]))
        for beams in (4, 1, 2, 4):
            model.generation_config["num_beams"] = beams
            for _ in range(2):
                found = demo.submit([5, 6, 0], **FULL).result()
                assert_same(found, model.generate([[5, 6, 0]], **FULL))


WARNED: list[dict[str, Any]] = [
    {"min_new_tokens": 9, **MOST},
    {"min_length": 12, **MOST},
    {"length_penalty": 0.5, **MOST},
    {},
]


@names
@pytest.mark.parametrize("options", WARNED, ids=" ".join)
def test_each_request_is_warned(name: str, options: dict[str, Any]) -> None:
    if not options and "marian" in name:
        return  # which has a length of its own
    for _ in range(3):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            engine(name).submit([12], **options).result()
        with warnings.catch_warnings(record=True) as expected:
            warnings.simplefilter("always")
            ours(name).generate([[12]], **options)
        assert len(found) == len(expected) > 0
        assert [str(each.message) for each in found] == [str(each.message) for each in expected]


def test_a_tokenizer_is_its_own_calls() -> None:
    options = MOST | FULL | {"length_penalty": 0.4, "num_beams": 2}
    for own in (tokenizer(), None, tokenizer(), None):
        given: dict[str, Any] = {} if own is None else {"tokenizer": own}
        found = engine("gpt2").submit([12, 13], **given, **options).result()
        assert (found.tokenizer is tokenizer()) == (own is not None)


def test_a_closed_model_takes_no_requests() -> None:
    model = decoding.load("demo", device="cpu", threads=1)
    with decoding.Engine(model) as demo:
        demo.submit([5, 6, 0]).result()
        model.close()
        with pytest.raises(ValueError, match="the model is closed"):
            demo.submit([5, 6, 0])


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_plain_ids(kind: Any) -> None:
    for dtype in (np.int8, np.uint16, np.int32, np.int64):
        given = kind([3, 1, 2])
        if kind is np.array:
            given = given.astype(dtype)
        if kind is torch.tensor:
            given = given.numpy()
        ids = _C.plain_ids(given, vocab=4)
        assert ids is not None and ids.dtype == np.int64 and ids.tolist() == [[3, 1, 2]]
        assert _C.plain_ids(given, vocab=3) is None
        assert _C.plain_ids(given, vocab=4, without=1) is None
    for ids, limit in itertools.product(WRONG, (4, 99)):
        assert _C.plain_ids(ids, vocab=limit) is None or ids == [5] * 60
    strided = _C.plain_ids(np.arange(12)[::3], vocab=10)
    assert strided is not None and strided.tolist() == [[0, 3, 6, 9]]
