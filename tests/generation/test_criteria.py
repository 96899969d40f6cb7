"""Stopping criteria of transformers' own classes take the place of the options that make them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import MaxLengthCriteria, MaxTimeCriteria, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria

from decoding.generation.functions.criteria import REPLACES
from tests.support.random_models import ours, reference

IDS = torch.tensor([[12, 13, 14], [16, 17, 18], [20, 12, 22]])


def both(name: str, criteria: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
    options |= {"attention_mask": torch.ones_like(IDS)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = StoppingCriteriaList(criteria)
        theirs = reference(name).generate(IDS, stopping_criteria=made, **options)
        mine = ours(name, "cpu").generate(IDS, stopping_criteria=criteria, **options)
    return theirs.tolist(), mine.tolist()


@pytest.mark.parametrize("name", ["marian", "gpt2-pad"])
@pytest.mark.parametrize(
    ("criteria", "options"),
    [
        ([MaxLengthCriteria(30)], {}),
        ([MaxLengthCriteria(12)], {"max_length": 6}),
        ([MaxLengthCriteria(6)], {"max_new_tokens": 12}),
        ([MaxLengthCriteria(1)], {"max_new_tokens": 12}),
        ([MaxLengthCriteria(12), MaxLengthCriteria(9)], {"max_length": 6}),
        ([MaxLengthCriteria(8)], {"max_length": 12, "num_beams": 3}),
        ([MaxLengthCriteria(8)], {"max_length": 12, "forced_eos_token_id": 2}),
        ([MaxTimeCriteria(100)], {"max_time": 0.0, "max_new_tokens": 8}),
        ([EosTokenCriteria(9)], {"eos_token_id": None, "max_new_tokens": 20}),
    ],
)
def test_a_criterion_takes_the_place_of_its_option(
    name: str, criteria: list[Any], options: dict[str, Any]
) -> None:
    theirs, mine = both(name, criteria, **options)
    assert mine == theirs


def test_end_tokens_that_are_those_of_the_option_change_nothing() -> None:
    options = {"eos_token_id": [9, 30], "max_new_tokens": 20, "num_beams": 3}
    theirs, mine = both("gpt2-pad", [EosTokenCriteria([30, 9])], **options)
    assert mine == theirs


@pytest.mark.parametrize(
    ("criteria", "options", "message"),
    [
        (MaxLengthCriteria(30), {"num_beams": 2}, "pass max_length"),
        (MaxLengthCriteria(30), {"forced_eos_token_id": 2}, "pass max_length"),
        (EosTokenCriteria(9), {"eos_token_id": 3}, "pass them as eos_token_id"),
    ],
)
def test_what_decides_more_than_the_end_is_refused(
    criteria: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotImplementedError, match=message):
        ours("gpt2-pad", "cpu").generate(
            IDS, stopping_criteria=[criteria], max_new_tokens=9, **options
        )


def test_a_function_that_is_listed_twice_runs_once() -> None:
    def calls(ids: Any, scores: Any) -> Any:
        seen.append(ids)
        return torch.zeros(len(ids), dtype=torch.bool)

    seen: list[Any] = []
    ours("gpt2-pad", "cpu").generate(
        IDS, stopping_criteria=[calls, calls], max_new_tokens=4, min_new_tokens=4
    )
    assert len(seen) == 4


def test_all_of_transformers_criteria_are_known() -> None:
    import transformers.generation.stopping_criteria as module

    kinds = {name for name in vars(module) if name.endswith("Criteria")}
    assert kinds - {"StoppingCriteria", "ConfidenceCriteria"} == set(REPLACES)
