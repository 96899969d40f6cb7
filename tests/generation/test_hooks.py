"""A caller's own functions in the step: what they see, what they change, what they raise."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)

import decoding
from tests.support.comparison import assert_close_scores
from tests.support.random_models import ours, reference

IDS = torch.tensor([[12, 13, 14, 15], [16, 17, 18, 19], [20, 12, 22, 23]])
CRITERIA = {"stopping_criteria": [lambda ids, scores: False]}
SEARCHES: list[dict[str, Any]] = [{}, {"num_beams": 3, "num_return_sequences": 2}]
names = pytest.mark.parametrize("name", ["marian", "gpt2-pad"])
searches = pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beams"])


def both(name: str, device: str, processors: Any = None, **options: Any) -> tuple[Any, Any]:
    """What transformers finds on the CPU and what we find; processors: made for a device."""
    common = {"max_new_tokens": 9, "return_dict_in_generate": True, "output_scores": True}
    options = {"attention_mask": torch.ones_like(IDS)} | common | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if processors is not None:
            made = LogitsProcessorList(processors("cpu"))
            theirs = reference(name).generate(IDS, logits_processor=made, **options)
            options["logits_processor"] = processors(device)
        else:
            theirs = reference(name).generate(IDS, **options)
        mine = ours(name, device).generate(IDS, **options)
    return theirs, mine


def assert_same(theirs: Any, mine: Any) -> None:
    assert mine.sequences.tolist() == theirs.sequences.tolist()
    if hasattr(theirs, "sequences_scores"):
        assert_close_scores(mine.sequences_scores, theirs.sequences_scores)
    assert len(mine.scores) == len(theirs.scores)
    torch.testing.assert_close(mine.scores[0], theirs.scores[0], atol=1e-4, rtol=1e-4)


class Favourite(transformers.LogitsProcessor):
    """Likes one token more, the longer the row, and remembers what it saw."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.seen: list[tuple[Any, torch.dtype, torch.dtype]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append((tuple(input_ids.shape), input_ids.dtype, scores.dtype))
        scores = scores.clone()
        scores[:, self.token] += 0.3 * input_ids.shape[1]
        return scores


@names
@searches
def test_processors_of_ones_own(name: str, search: dict[str, Any], device: str) -> None:
    favourite, again = Favourite(21), Favourite(21)
    plain = both(name, device, **search)[1]
    theirs, _ = both(name, device, logits_processor=LogitsProcessorList([favourite]), **search)
    favourite.seen.clear()
    options = {"logits_processor": [again], "repetition_penalty": 1.2, "suppress_tokens": [13]}
    assert_same(*both(name, device, **search, **options))
    again.seen.clear()
    mine = ours(name, device).generate(
        IDS,
        max_new_tokens=9,
        attention_mask=torch.ones_like(IDS),
        logits_processor=[again],
        **search,
    )
    assert torch.equal(mine, theirs.sequences) and not torch.equal(mine, plain.sequences)
    rows = 3 * search.get("num_beams", 1)
    start = 1 if name == "marian" else 4
    kinds = (torch.int64, torch.float32)
    assert again.seen == [((rows, start + g), *kinds) for g in range(len(again.seen))]


@names
@searches
def test_processors_take_the_place_of_built_in_ones(
    name: str, search: dict[str, Any], device: str
) -> None:

    def processors(place: str) -> list[Any]:
        return [
            transformers.RepetitionPenaltyLogitsProcessor(1.7),
            transformers.SuppressTokensLogitsProcessor([21, 13], device=place),
            transformers.NoBadWordsLogitsProcessor([[20, 22], [14]], eos_token_id=3),
            transformers.MinLengthLogitsProcessor(8, [1, 3], device=place),
            transformers.ForcedEOSTokenLogitsProcessor(9, 5, device=place),
            Favourite(25),
        ]

    options = {
        "repetition_penalty": 0.5,
        "suppress_tokens": [25],
        "bad_words_ids": [[22]],
        "min_new_tokens": 3,
        "no_repeat_ngram_size": 3,
        "sequence_bias": {(30,): 1.5, (31, 32): 2.0},
    }
    assert_same(*both(name, device, processors, **search, **options))
    two = [transformers.RepetitionPenaltyLogitsProcessor(p) for p in (1.5, 0.9)]
    assert_same(*both(name, device, lambda _: two, repetition_penalty=3.0, **search))
    assert_same(*both(name, device, processors, **search))


@names
@searches
def test_prefix_allowed_tokens(name: str, search: dict[str, Any], device: str) -> None:
    seen: list[tuple[int, list[int]]] = []

    def allowed(item: int, row: Tensor) -> list[int]:
        seen.append((item, row.tolist()))
        return [3, 11, 5 + item, (int(row[-1]) + 7) % 50, (int(row[-1]) + 9) % 50]

    theirs, mine = both(name, device, prefix_allowed_tokens_fn=allowed, **search)
    assert_same(theirs, mine)
    assert {item for item, _ in seen} == {0, 1, 2}


@names
def test_allowed_tokens_that_are_banned_get_0(name: str, device: str) -> None:
    fn = {"prefix_allowed_tokens_fn": lambda item, row: [31, 30] if item == 1 else [40, 41]}
    theirs, mine = both(name, device, bad_words_ids=[[30], [31]], **fn)
    assert_same(theirs, mine)
    assert set(mine.sequences[1, -9:].tolist()) == {30}


class EndsWith(transformers.StoppingCriteria):
    """Ends rows behind some tokens, and remembers what it saw."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus
        self.seen: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.seen.append((tuple(input_ids.shape), None if scores is None else len(scores)))
        return input_ids[:, -1] % self.modulus == 0


@names
@searches
@pytest.mark.parametrize("modulus", [2, 4, 9])
def test_stopping_criteria(name: str, search: dict[str, Any], modulus: int, device: str) -> None:
    criterion = EndsWith(modulus)
    theirs, mine = both(name, device, stopping_criteria=StoppingCriteriaList([criterion]), **search)
    assert_same(theirs, mine)
    half = len(criterion.seen) // 2
    assert len(criterion.seen) == 2 * half and criterion.seen[:half] == criterion.seen[half:]
    later = [lambda ids, scores, **_: ids.shape[1] >= 7, EndsWith(9)]  # one for all, one for each
    assert_same(*both(name, device, stopping_criteria=StoppingCriteriaList(later), **search))


@searches
def test_criteria_see_no_scores_that_were_not_asked_for(
    search: dict[str, Any], device: str
) -> None:
    criterion = EndsWith(100)
    options = {"max_new_tokens": 3, "stopping_criteria": [criterion], **search}
    ours("gpt2", device).generate(IDS, **options)
    assert {scores for _, scores in criterion.seen} == {None}


class Writing:
    """Writes a value into the scores of a row in one step: of one token, or of all."""

    def __init__(self, value: float, token: int | None, step: int, row: int) -> None:
        self.value, self.token, self.step, self.row, self.calls = value, token, step, row, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.step:
            scores = scores.clone()
            scores[self.row, slice(None) if self.token is None else self.token] = self.value
        return scores


KINDS: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 3},
    {"num_beams": 1, "do_sample": True, "seed": 1},
]


@pytest.mark.parametrize("search", KINDS)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_scores_that_a_function_breaks(value: str, search: dict[str, Any], device: str) -> None:
    """Sentence and step are named. transformers raises where it samples, takes NaN for the largest
    score, and beams of infinite sums for equal ones; +inf is the largest score for both."""
    model, beams = ours("gpt2", device), search["num_beams"]
    before = model.generate(IDS, max_new_tokens=4, **search)
    for token in (17, None):
        broken = Writing(float(value), token, 2, 1 * beams)
        options = search | {"logits_processor": [broken], "max_new_tokens": 4, "eos_token_id": None}
        if value == "inf" and search == KINDS[0]:
            expected = Writing(float(value), token, 2, 1)
            theirs = reference("gpt2").generate(
                IDS, **options | {"logits_processor": LogitsProcessorList([expected])}
            )
            assert torch.equal(model.generate(IDS, **options), theirs)
            continue
        said = f"made {'NaN' if value == 'nan' else r'.inf'} of a score for item 1 at step 2"
        with pytest.raises(ValueError, match=said):
            model.generate(IDS, **options)
    assert torch.equal(model.generate(IDS, max_new_tokens=4, **search), before)


def test_banned_tokens_are_no_mistake(device: str) -> None:
    """-inf, as transformers takes it; where nothing is left to sample, the sentence is named."""
    model = ours("gpt2", device)
    options: dict[str, Any] = {"max_new_tokens": 4, "eos_token_id": None, "pad_token_id": 5}
    for search in KINDS[:2]:
        for token in (17, None):
            found, expected = (
                each.generate(
                    IDS,
                    attention_mask=torch.ones_like(IDS),
                    logits_processor=LogitsProcessorList([Writing(-math.inf, token, 2, 1)]),
                    **options,
                    **search,
                )
                for each in (model, reference("gpt2"))
            )
            assert torch.equal(found, expected)
    with pytest.raises(decoding.Error, match="every token is banned for item 1 at step 2"):
        model.generate(
            IDS, logits_processor=[Writing(-math.inf, None, 2, 1)], **options, **KINDS[2]
        )


def test_what_is_not_finite_may_be_repaired(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor that transformers has for it, behind a function in a built-in's place."""

    def breaking(self: Any, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[1, 17] = math.nan
        return scores

    monkeypatch.setattr(RepetitionPenaltyLogitsProcessor, "__call__", breaking)
    options: dict[str, Any] = {"repetition_penalty": 1.2, "max_new_tokens": 4}
    options["logits_processor"] = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.2)])
    with pytest.raises(ValueError, match="made NaN of a score for item 1 at step 1"):
        ours("gpt2", device).generate(IDS, **options)
    options["remove_invalid_values"] = True
    found, expected = (
        model.generate(IDS, attention_mask=torch.ones_like(IDS), **options)
        for model in (ours("gpt2", device), reference("gpt2"))
    )
    assert torch.equal(found, expected)


@searches
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("kind", ["logits_processor", "stopping_criteria", "prefix"])
def test_what_a_function_raises_passes_through(
    kind: str, step: int, search: dict[str, Any], device: str
) -> None:
    class Mine(BaseException):
        pass

    error = Mine()
    calls = iter(range(1, 100))

    def function(*_: Any, **__: Any) -> Any:
        if next(calls) >= step:
            raise error
        return _[1] if kind == "logits_processor" else [7, 8] if kind == "prefix" else False

    named = {"prefix": "prefix_allowed_tokens_fn"}.get(kind, kind)
    given: Any = function if kind == "prefix" else [function]
    model = ours("gpt2", device)
    before = model.generate(IDS, max_new_tokens=5, **search)
    with pytest.raises(Mine) as raised:
        model.generate(IDS, max_new_tokens=5, **{named: given}, **search)
    assert raised.value is error
    assert torch.equal(model.generate(IDS, max_new_tokens=5, **search), before)


def test_sampling_with_functions(device: str) -> None:
    """They come before the filters, and do not shift the random numbers."""
    options = {"do_sample": True, "num_return_sequences": 4, "seed": 3, "max_new_tokens": 6}
    model = ours("gpt2", device)
    plain = model.generate(IDS, **options)
    same = model.generate(IDS, logits_processor=[lambda ids, scores: scores], **options)
    assert torch.equal(same, plain)
    banned = model.generate(IDS, suppress_tokens=[13, 20], **options)

    def ban(ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, [13, 20]] = -torch.inf  # in place: it is the engine's own memory
        return scores

    assert torch.equal(model.generate(IDS, logits_processor=[ban], **options), banned)


def test_the_scores_are_the_engines_own_memory(device: str) -> None:
    pointers = set()

    def look(ids: Tensor, scores: Tensor) -> Tensor:
        pointers.add(scores.data_ptr())
        return scores

    options = {"max_new_tokens": 6, "eos_token_id": None, "logits_processor": [look]}
    ours("gpt2", device).generate(IDS, **options)
    assert len(pointers) == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.generate([[5, 6]], max_new_tokens=2),
        lambda model: model.score([[5, 6]]),
        lambda model: model.memory_plan(),
        lambda model: model.overflow_statistics(),
    ],
    ids=["generate", "score", "memory_plan", "overflow_statistics"],
)
def test_a_function_that_asks_its_own_model(ask: Callable[[decoding.Model], Any]) -> None:
    """It would wait for the end of the call that waits for it."""
    model = decoding.load(reference("gpt2"), "cpu", threads=1, detect_overflow=True)
    found: list[Exception] = []

    def asks(ids: Tensor, scores: Tensor) -> Tensor:
        ask(model)
        return scores

    def call() -> None:
        try:
            model.generate(IDS, max_new_tokens=3, logits_processor=[asks])
        except decoding.Error as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert "cannot ask the model that runs the call" in str(found[0])
    ask(model)  # afterwards it may be asked again


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"logits_processor": len}, TypeError, "list of functions"),
        ({"logits_processor": {}}, TypeError, "list of functions"),
        ({"logits_processor": [3]}, TypeError, "callable, got 3"),
        ({**CRITERIA, "penalty_alpha": 0.5}, ValueError, "penalty_alpha do not go together"),
        (
            {**CRITERIA, "num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1.0},
            ValueError,
            "num_beam_groups",
        ),
        ({**CRITERIA, "num_beams": 2, "force_words_ids": [[5]]}, ValueError, "force_words_ids"),
        ({"stopping_criteria": "x"}, TypeError, "list of functions"),
        ({"prefix_allowed_tokens_fn": [5]}, TypeError, "callable"),
        ({"prefix_allowed_tokens_fn": lambda item, row: []}, ValueError, "nothing in row 0"),
        ({"prefix_allowed_tokens_fn": lambda item, row: [60]}, ValueError, "holds 60"),
        (
            {"logits_processor": [lambda ids, scores: None]},
            TypeError,
            "shape .3, 60., got NoneType",
        ),
        ({"logits_processor": [lambda i, s: s[:1]]}, TypeError, "got .1, 60."),
        ({"stopping_criteria": [lambda i, s: torch.ones(2)]}, RuntimeError, "size"),
    ],
)
def test_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ours("gpt2").generate(IDS, max_new_tokens=3, **options)


def test_rows_must_stand_side_by_side() -> None:
    fn: dict[str, Any] = {"logits_processor": [lambda ids, scores: scores], "max_new_tokens": 3}
    with pytest.raises(ValueError, match="decoder_input_ids of one length"):
        ours("marian").generate(IDS, decoder_input_ids=[[5], [6, 7], [8]], **fn)
    small = decoding.load(
        reference("gpt2"), "cpu", limits=decoding.Limits(batch=2, beams=1, target=9, prompt=9)
    )
    with pytest.raises(ValueError, match="limits' batch"):
        small.generate(IDS, **fn)
