"""frequency_penalty and presence_penalty, which Hugging Face has not: as its generate() with a
processor of them in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList

import decoding
from tests.search.count_penalties import CountPenalties
from tests.support.random_models import ours, reference

IDS = torch.tensor([[12, 13, 14, 12], [20, 21, 13, 13], [30, 12, 30, 9]])
PENALTIES: list[dict[str, float]] = [
    {"frequency_penalty": 0.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.4, "presence_penalty": 0.7},
]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.5},
    {"num_beams": 2, "bad_words_ids": [[13, 12]], "min_new_tokens": 4},
]
# Whose random numbers, or whose search, are not Hugging Face's; for groups see test_diverse.py.
OWN: list[dict[str, Any]] = [
    {"do_sample": True, "seed": 3, "num_return_sequences": 2, "temperature": 1.3},
    {"do_sample": True, "seed": 4, "num_beams": 3, "min_p": 0.02},
    {"num_beams": 4, "diversity_rate": 0.3},
    {"num_beams": 3, "force_words_ids": [[17], [18, 19]]},
    {"penalty_alpha": 0.5, "top_k": 4},
]
LONG = {"max_new_tokens": 24, "eos_token_id": None, "pad_token_id": 5}


def processor(name: str, options: dict[str, float]) -> LogitsProcessorList:
    width = 1 if name == "marian" else IDS.shape[1]
    given = {key.removesuffix("_penalty"): value for key, value in options.items()}
    return LogitsProcessorList([CountPenalties(width, **given)])


@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_as_a_processor_of_transformers(
    name: str, search: dict[str, Any], penalties: dict[str, float], device: str
) -> None:
    options = LONG | search
    mask = torch.ones_like(IDS)
    theirs = reference(name).generate(
        IDS, attention_mask=mask, logits_processor=processor(name, penalties), **options
    )
    model = ours(name, device)
    assert model.generate(IDS, **options, **penalties).tolist() == theirs.tolist()
    assert model.generate(IDS, **options).tolist() != theirs.tolist(), "the test shows nothing"


@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
@pytest.mark.parametrize("search", OWN, ids=str)
def test_as_a_processor_of_our_own_searches(
    search: dict[str, Any], penalties: dict[str, float], device: str
) -> None:
    model, options = ours("gpt2", device), LONG | search
    if "force_words_ids" in search:
        options |= {"eos_token_id": 3}
    expected = model.generate(IDS, logits_processor=processor("gpt2", penalties), **options)
    assert model.generate(IDS, **options, **penalties).tolist() == expected.tolist()
    assert model.generate(IDS, **options).tolist() != expected.tolist(), "the test shows nothing"


def test_behind_the_repetition_penalty(device: str) -> None:
    """Which counts the prompt's tokens, too, and comes first: as in vLLM."""
    options = LONG | {"repetition_penalty": 1.4}
    width, given = IDS.shape[1], {"frequency_penalty": 0.5, "presence_penalty": 0.3}
    theirs: Any = reference("gpt2").generate(
        IDS,
        attention_mask=torch.ones_like(IDS),
        logits_processor=LogitsProcessorList([CountPenalties(width, 0.5, 0.3)]),
        **options,
    )
    assert ours("gpt2", device).generate(IDS, **options, **given).tolist() == theirs.tolist()


def test_requests_of_one_engine_have_their_own(device: str) -> None:
    model = ours("gpt2", device)
    with decoding.Engine(model, max_requests=8) as engine:
        every: list[dict[str, Any]] = [{}, *PENALTIES, {"num_beams": 2, "presence_penalty": 2.0}]
        asked = [(row, LONG | each) for row in IDS.tolist() for each in every]
        requests: list[Any] = [engine.submit(row, **options) for row, options in asked]
        found = [request.result().tolist() for request in requests]
    assert found == [model.generate([row], **options).tolist() for row, options in asked]
    assert len({str(tokens) for tokens in found}) > len(IDS) * 3
