"""Sampling: frequencies, our reference's own draws, seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from decoding.reference import Rules, sample
from tests.support.calls import ragged
from tests.support.random_models import MARIAN, ours, reference

FILTERS: list[dict[str, Any]] = [
    {"top_k": None},
    {"top_k": 5},
    {"top_k": None, "top_p": 0.8},
    {"temperature": 0.6, "top_k": 9},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.7},
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("name", ["marian-unscaled", "gpt2-tied"])
def test_samples_follow_the_reference(name: str, filters: dict[str, Any], device: str) -> None:
    """Support and chi-square of first and second tokens against transformers' own distribution."""
    ids, copies = torch.tensor([[15, 21, 33]]), 4000
    options = {"do_sample": True, "bad_words_ids": [[6]], "min_new_tokens": 1} | filters
    found = ours(name, device).generate(
        ids, max_new_tokens=2, seed=11, num_return_sequences=copies, **options
    )
    prompt = found[:, :-2]
    first, second = found[:, -2], found[:, -1]
    check_frequencies(first, distribution(name, ids, prompt[:1], options))
    common = int(first.mode().values)
    eos = reference(name).generation_config.eos_token_id
    assert common != eos
    start = torch.cat([prompt[:1], torch.tensor([[common]])], 1)
    more = {key: value for key, value in options.items() if key != "min_new_tokens"}
    check_frequencies(second[first == common], distribution(name, ids, start, more))


def distribution(name: str, ids: Tensor, start: Tensor, options: dict[str, Any]) -> Tensor:
    """Probabilities [V] of the next token, by transformers."""
    inputs = (
        {"input_ids": ids, "decoder_input_ids": start} if name in MARIAN else {"input_ids": start}
    )
    found = reference(name).generate(
        **inputs,
        **options,
        attention_mask=torch.ones_like(inputs["input_ids"]),
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return found.scores[0][0].softmax(-1)


def check_frequencies(tokens: Tensor, probabilities: Tensor) -> None:
    counts = tokens.bincount(minlength=len(probabilities))
    assert bool((counts[probabilities == 0] == 0).all()), "outside of the support"
    expected = probabilities.double() * len(tokens)
    often = expected >= 5
    bins = [*counts[often].tolist(), int(counts[~often].sum())]
    theory = [*expected[often].tolist(), float(expected[~often].sum())]
    assert len(bins) > 2 and len(tokens) >= 200
    if theory[-1] < 1:  # too rare for a bin of its own
        bins, theory = bins[:-1], theory[:-1]
    scale = sum(bins) / sum(theory)
    assert chisquare(bins, [scale * x for x in theory]).pvalue > 1e-3


@pytest.mark.parametrize("filters", FILTERS)
def test_samples_are_those_of_our_reference(filters: dict[str, Any], device: str) -> None:
    """Token for token: the engine's random numbers are Philox's, keyed as documented."""
    model = reference("gpt2")
    ids = ragged("gpt2", 3)
    off = {"top_k": 0} if filters.get("top_k", 50) is None else {}
    found = ours("gpt2", device).generate(
        **ids, do_sample=True, seed=2**63 + 5, num_return_sequences=2, max_new_tokens=6, **filters
    )
    for row in range(6):
        given = ids["input_ids"][row // 2][ids["attention_mask"][row // 2] == 1]

        def logits(tokens: tuple[int, ...], given: Tensor = given) -> Tensor:
            return model(torch.cat([given, torch.tensor(tokens, dtype=torch.int64)])[None]).logits[
                0, -1
            ]

        rules = Rules(max_new=6, eos=(1,))
        expected = sample(logits, rules, seed=2**63 + 5, row=row, **(filters | off))
        tokens = found[row, 7:].tolist()
        assert tuple(tokens[: len(expected)]) == expected
        assert set(tokens[len(expected) :]) <= {1}


def test_seeds(device: str) -> None:
    inputs = ragged("gpt2", 3)
    options = {"do_sample": True, "num_return_sequences": 4, "eos_token_id": None, "top_k": 0}
    generate = ours("gpt2", device).generate

    def draw(**more: Any) -> Any:
        return generate(**inputs, max_new_tokens=8, **options, **more)

    assert torch.equal(draw(seed=1), draw(seed=1))
    assert not torch.equal(draw(seed=1), draw(seed=2))
    assert len({tuple(row) for row in draw(seed=1)[:4].tolist()}) == 4, "copies draw for themselves"
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first) and not torch.equal(first, second)
    drawn = set(draw(seed=1)[:, 7:].flatten().tolist())
    never = next(id for id in range(60) if id not in drawn)
    other_options = draw(seed=1, bad_words_ids=[[never]], min_new_tokens=3)
    assert torch.equal(other_options, draw(seed=1)), "other options do not shift the stream"


def test_a_seed_for_each_row(device: str) -> None:
    """Its draws then do not depend on its place; values of the others change nothing."""
    inputs = ragged("gpt2", 3)
    options = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 8, "top_k": 0}
    generate = ours("gpt2", device).generate
    found = generate(**inputs, **options, seed=[7, 8, 7])
    back = generate(**{k: v.flip(0) for k, v in inputs.items()}, **options, seed=[7, 8, 7])
    assert torch.equal(back.view(3, 2, -1).flip(0), found.view(3, 2, -1))
    alone = {k: v[:1] for k, v in inputs.items()}
    assert torch.equal(generate(**alone, **options, seed=[7]), found[:2])
    assert torch.equal(generate(**alone, **options, seed=7), found[:2]), "the first row's own"
    assert found[0].tolist() != found[1].tolist(), "copies draw for themselves"


def test_forced_tokens_when_sampling(device: str) -> None:
    found = ours("marian", device).generate(
        [[12, 13]],
        do_sample=True,
        num_return_sequences=200,
        seed=1,
        max_new_tokens=3,
        forced_bos_token_id=20,
        forced_eos_token_id=[4, 9],
        eos_token_id=None,
    )
    assert set(found[:, 1].tolist()) == {20}
    counts = found[:, 3].bincount(minlength=10)
    assert counts[4] + counts[9] == 200 and 60 < int(counts[4]) < 140
