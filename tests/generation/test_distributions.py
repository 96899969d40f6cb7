"""What generate() draws, against the probabilities of transformers: at least 50,000 draws each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor

from decoding import reference
from decoding.reference import FILL_IN
from tests.search.test_reference import PROMPTS, logits_of
from tests.support.random_models import ours
from tests.support.random_models import reference as transformers_model

DRAWS = 50_000
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 0},
    {"temperature": 0.6},
    {"temperature": 2.5, "top_k": 0},
    {"top_h": 0.4},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.03},
    {"typical_p": 0.7},
    {"epsilon_cutoff": 0.02},
    {"eta_cutoff": 0.05},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.7, "top_h": 0.8, "typical_p": 0.9},
    {"top_k": 30, "min_p": 0.01, "epsilon_cutoff": 0.01},
    {"typical_p": 0.9, "eta_cutoff": 0.03, "min_p": 0.005, "renormalize_logits": True},
    {"repetition_penalty": 1.5, "typical_p": 0.8, "temperature": 1.4},
    {"repetition_penalty": 1.5, "top_k": 3, "temperature": 2.0},
    {
        "temperature": 1.5, "top_h": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.004,
        "typical_p": 0.95, "epsilon_cutoff": 0.004, "eta_cutoff": 0.01,
    },
]  # fmt: skip


def probabilities(**options: Any) -> Tensor:
    """Of the first token, float64 [V], by transformers."""
    found = transformers_model("gpt2").generate(
        torch.tensor([PROMPTS["gpt2"]]),
        do_sample=True,
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=0,
        **options,
    )
    return found.scores[0][0].double().softmax(-1)


def assert_drawn_from(expected: Tensor, tokens: Tensor) -> None:
    """Chi-square. expected: the probabilities of what `tokens` can be."""
    drawn = tokens.long().bincount(minlength=len(expected)).double()
    assert not drawn[expected == 0].any()
    wanted = expected * len(tokens)
    common = wanted > 5
    observed = torch.cat([drawn[common], drawn[~common].sum()[None]])
    wanted = torch.cat([wanted[common], wanted[~common].sum()[None]])
    counts = wanted > 0
    if counts.sum() > 1:
        assert chisquare(observed[counts].numpy(), wanted[counts].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters(filters: dict[str, Any], device: str) -> None:
    ids = torch.tensor([PROMPTS["gpt2"]]).repeat(DRAWS // 2, 1)
    found = ours("gpt2", device).generate(
        ids,
        do_sample=True,
        num_return_sequences=2,
        max_new_tokens=1,
        seed=7,
        pad_token_id=0,
        **filters,
    )
    assert len(found) == DRAWS
    assert_drawn_from(probabilities(**filters), found[:, -1])


@pytest.mark.gpu
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_cuda_draws_what_the_cpu_draws(filters: dict[str, Any]) -> None:
    ids = torch.tensor([PROMPTS["gpt2"]]).repeat(500, 1)
    options = {"do_sample": True, "max_new_tokens": 3, "seed": 7, "pad_token_id": 0, **filters}
    theirs = ours("gpt2").generate(ids, **options)
    # Logits differ by rounding: a draw on the edge may differ too, and then what follows it.
    same = (ours("gpt2", "cuda").generate(ids, **options).cpu() == theirs).all(1)
    assert same.float().mean() > 0.99


@pytest.mark.parametrize("beams", [1, 3])
def test_draws_do_not_depend_on_the_batch(beams: int, device: str) -> None:
    """With a seed for each row: alone, in any order, beside others."""
    ids = torch.tensor([[4, 8, 15], [16, 23, 42], [7, 7, 7], [4, 8, 15]])
    seeds = [3, 2**64 - 1, 5, 4]
    options: dict[str, Any] = {
        "do_sample": True, "num_beams": beams, "max_new_tokens": 6, "typical_p": 0.9,
        "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    model = ours("gpt2", device)
    together = model.generate(ids, seed=seeds, **options)
    backwards = model.generate(ids.flip(0), seed=seeds[::-1], **options)
    assert torch.equal(together, backwards.flip(0))
    for i, seed in enumerate(seeds):
        assert torch.equal(model.generate(ids[i : i + 1], seed=[seed], **options)[0], together[i])
    assert not torch.equal(together[0], together[3])  # the same row, another seed


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("beams", [2, 4])
@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 0}, {"top_k": 5, "temperature": 2.0}, {"typical_p": 0.6}]
)
def test_beams_are_those_of_our_reference(
    name: str, beams: int, filters: dict[str, Any], device: str
) -> None:
    """Token for token: the same noise decides."""
    stopping: list[bool | str] = [False, True, "never"]
    for seed, early_stopping in enumerate(stopping):
        eos = (transformers_model(name).config.eos_token_id, 9)
        rules = reference.Rules(max_new=6, eos=eos)
        expected = reference.beam_sample(
            logits_of(name), rules, beams=beams, seed=seed, row=beams,
            length_penalty=0.7, early_stopping=early_stopping, **{"top_k": 50, **filters},
        )  # fmt: skip
        found = ours(name, device).generate(
            torch.tensor([PROMPTS[name]]).repeat(2, 1), do_sample=True, num_beams=beams, seed=seed,
            num_return_sequences=beams, max_new_tokens=6, eos_token_id=list(eos), pad_token_id=0,
            length_penalty=0.7, early_stopping=early_stopping, return_dict_in_generate=True,
            output_scores=True, **filters,
        )  # fmt: skip
        start = 1 if name == "marian" else len(PROMPTS[name])
        rows = found.sequences[beams:, start:].tolist()  # of the second item
        scores = found.sequences_scores[beams:].tolist()
        for tokens, score, row in zip(rows, scores, expected, strict=True):
            if row.score > FILL_IN / 10:
                assert tuple(tokens[: len(row.tokens)]) == row.tokens
                assert score == pytest.approx(row.score, rel=1e-4, abs=1e-4)
            else:
                assert score <= -1e8


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2, "max_new_tokens": 2, "top_k": 4},
        {"num_beams": 3, "max_new_tokens": 3, "temperature": 1.3, "top_k": 3},
        {"num_beams": 2, "max_new_tokens": 3, "typical_p": 0.5, "early_stopping": True},
    ],
    ids=str,
)
def test_beams_are_distributed_as_the_reference(options: dict[str, Any], device: str) -> None:
    """Two samples of what generate() returns, ours and transformers'."""
    model = transformers_model("gpt2")
    count = DRAWS // 4  # sentences, each with many draws
    ids = torch.tensor([PROMPTS["gpt2"]]).repeat(count, 1)
    common = {**options, "do_sample": True, "pad_token_id": 0}
    torch.manual_seed(3)
    theirs = torch.cat([model.generate(part, **common) for part in ids.split(5000)])
    found = ours("gpt2", device).generate(ids, seed=3, **common)
    width = max(theirs.shape[1], found.shape[1])
    rows = torch.cat(
        [
            torch.nn.functional.pad(part, (0, width - part.shape[1]))
            for part in (theirs, found.cpu())
        ]
    )
    _, kind = rows.unique(dim=0, return_inverse=True)
    table = torch.stack(
        [part.bincount(minlength=int(kind.max()) + 1) for part in kind.split(count)]
    )
    rare = table.sum(0) < 20
    table = torch.cat([table[:, ~rare], table[:, rare].sum(1, keepdim=True)], dim=1)
    table = table[:, table.sum(0) > 0]
    assert table.shape[1] > 5
    assert chi2_contingency(table.numpy()).pvalue > 1e-3
