"""Groups of beams on prompts that the prefix cache has found, against transformers without a cache:
there each step computes whole rows, of which no page, lane or key is kept."""

from __future__ import annotations

import itertools
from math import ceil, floor
from typing import Any

import pytest
import torch
from torch import Tensor

import decoding
from decoding.models.weights.dtypes import as_tensor
from decoding.serving import planning
from tests.serving.engines import FULL, assert_idle, tight_engine
from tests.support.random_models import ours, reference

NAME = "gpt2-long"
PAGE, VOCAB, EOS = 16, 60, 1
KNOWN = [(11 * i) % 55 + 4 for i in range(2 * PAGE)]  # two full pages, which all prompts begin with
PROMPTS = [[*KNOWN, 9], [*KNOWN, 5, 6, 7, 8, 30, 31, 32, 33]]  # they end there, or in a third page
BEAMS = [1, 3, 4, 5, 16, 17, 300]
FAVOUR = 60.0  # more than log-probabilities differ


def lengths(beams: int) -> list[int]:
    """New tokens with which so many rows fill a page but for a cell, or to its end, or go on to the
    next: as nearly as they can. At least so many that there are as many rows as beams."""
    least = 3 if beams > VOCAB else 1
    steps = {round(cells / beams) for cells in (15, 16, 17, 32, 33) for round in (floor, ceil)}
    return sorted({max(least, step) for step in steps})


def searches(prompt: list[int], beams: int) -> list[dict[str, Any]]:
    """Whatever comes; all beams go on from the last one; all but the last one end."""
    common: dict[str, Any] = {"num_beams": beams, "pad_token_id": 0}
    common["num_return_sequences"] = min(beams, 20)
    found = [common | {"max_new_tokens": n, "eos_token_id": None} for n in lengths(beams)]
    if beams == 1 or beams > VOCAB:  # more than there are first tokens
        return found
    with torch.no_grad():
        logits = reference(NAME)(torch.tensor([prompt])).logits[0, -1]
    logits[EOS] = -torch.inf
    *others, last = logits.topk(beams).indices.tolist()
    goes_on = {(last, token): FAVOUR for token in range(20, 20 + beams)}
    ends = {(token, EOS): FAVOUR for token in others}
    longest = common | {"max_new_tokens": max(lengths(beams))}
    return [
        *found,
        longest | {"eos_token_id": None, "sequence_bias": goes_on, "suppress_tokens": [EOS]},
        longest | {"eos_token_id": EOS, "sequence_bias": ends, "begin_suppress_tokens": [EOS]},
    ]


def brute_force(prompt: list[int], search: dict[str, Any]) -> Any:
    """transformers' search, which reads every row from its beginning in every step."""
    ids, told = torch.tensor([prompt]), {"return_dict_in_generate": True, "output_scores": True}
    return reference(NAME).generate(
        ids, attention_mask=torch.ones_like(ids), use_cache=False, do_sample=False, **search, **told
    )


@pytest.mark.parametrize("beams", BEAMS[1:-1])
def test_beams_turn_as_they_are_meant_to(beams: int) -> None:
    for prompt in PROMPTS:
        *_, goes_on, ends = (brute_force(prompt, search) for search in searches(prompt, beams))
        assert (goes_on.beam_indices[:, 1] == beams - 1).all()
        assert int((ends.sequences[:, len(prompt) + 1] == EOS).sum()) == beams - 1


def pools(engine: decoding.Engine, block: Tensor) -> list[Tensor]:
    """The engine's keys and its values, [heads of all layers, pages, PAGE, D], in its block."""
    buffers = [b for b in engine.memory_plan().buffers if b.name in ("k_pages", "v_pages")]
    return [block[b.offset :][: b.bytes].view(torch.float32).view(*b.shape) for b in buffers]


def test_beams_on_a_known_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, and whenever nobody has a page its numbers become NaN."""
    blocks = []

    def kept(*given: Any) -> Any:
        blocks.append(planning.allocated(*given))
        return blocks[-1]

    monkeypatch.setattr("decoding.serving.engine.allocated", kept)
    monkeypatch.setattr(planning, "BEAMS", max(BEAMS))
    with tight_engine(ours(NAME), rows=400, pages=200) as engine:
        both = pools(engine, as_tensor(blocks[0]))
        for pool in both:
            pool.fill_(torch.nan)
        engine.submit(PROMPTS[0], max_new_tokens=1).result(60)
        known = both[0].isfinite().all(3).all(2).all(0)  # the pages that are full
        assert int(known.sum()) == 2
        before = [pool[:, known].clone() for pool in both]
        for prompt in PROMPTS:
            asked = [searches(prompt, beams) for beams in BEAMS]
            for side_by_side in itertools.zip_longest(*asked):
                check_round(engine, prompt, [search for search in side_by_side if search])
                for pool, expected in zip(both, before, strict=True):
                    assert torch.equal(pool[:, known], expected), "a shared page was written"
                    pool[:, ~known] = torch.nan


def check_round(engine: decoding.Engine, prompt: list[int], asked: list[dict[str, Any]]) -> None:
    hits = engine.stats()["prefix_hits"]
    requests = [engine.submit(prompt, **search, **FULL) for search in asked]
    for search, request in zip(asked, requests, strict=True):
        expected, found = brute_force(prompt, search), request.result(60)
        assert torch.equal(found.sequences, expected.sequences), search
        if search["num_beams"] > 1:
            assert torch.equal(found.beam_indices, expected.beam_indices), search
            torch.testing.assert_close(
                found.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4
            )
    assert_idle(engine)
    assert engine.stats()["prefix_hits"] == hits + len(KNOWN) * len(asked)
