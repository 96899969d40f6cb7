"""Rows beyond a model's first positions: the rotary tables that transformers takes for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import decoding
from decoding.models.layouts.rotary import rotary
from tests.support.comparison import rows_of
from tests.support.families import GROUPED, Family

WITHIN = 8  # positions of the first table
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 5.0, 7.0, 11.0],
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 5.0}
OPTIONS: dict[str, Any] = {
    "eos_token_id": None,
    "pad_token_id": 1,
    "return_dict_in_generate": True,
    "output_scores": True,
}


def phi3(within: int = WITHIN) -> Any:
    """Of 48 positions, so many of them original."""
    config = {"original_max_position_embeddings": within, "rope_parameters": LONGROPE | {}}
    return Family("Phi3ForCausalLM", GROUPED | config | {"eos_token_id": 2}).model(end=2)


def llama(within: int = WITHIN) -> Any:
    """Of so many positions, and five times as many with what they grow to."""
    config = {"max_position_embeddings": within, "rope_parameters": DYNAMIC | {}}
    return Family("LlamaForCausalLM", GROUPED | config).model(end=2)


def prompts(length: int) -> torch.Tensor:
    return torch.randint(4, 60, (3, length), generator=torch.Generator().manual_seed(length))


CASES = {
    "longrope-short": (phi3, 3, 6),
    "longrope-just-short": (phi3, 8, 1),
    "longrope-just-long": (phi3, 9, 12),
    "longrope-long": (phi3, 20, 9),
    "dynamic-within": (llama, 3, 4),
    "dynamic-across": (llama, 6, 20),
    "dynamic-from-the-border": (llama, 8, 9),
    "dynamic-beyond": (llama, 15, 12),
}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_the_tokens_of_transformers(case: str, beams: int, device: str) -> None:
    make, length, new = CASES[case]
    theirs, ids = make(), prompts(length)
    options = OPTIONS | {"num_beams": beams, "max_new_tokens": new}
    found = decoding.load(theirs, device, dtype="float32").generate(ids, **options)
    assert rows_of(found) == rows_of(theirs.generate(ids, **options))


@pytest.mark.parametrize("make", [phi3, llama])
def test_a_row_has_its_own_table_in_any_batch(make: Any) -> None:
    """In transformers the longest row decides for all."""
    model = decoding.load(make(), "cpu", threads=1)
    rows = [row.tolist() for length in (3, 9, 5, 20) for row in prompts(length)[:1]]
    together = model.generate(rows, **OPTIONS, max_new_tokens=4, num_beams=2).sequences
    for row, found in zip(rows, together, strict=True):
        alone = model.generate([row], **OPTIONS, max_new_tokens=4, num_beams=2).sequences
        assert found[-4:].tolist() == alone[0, -4:].tolist()


@pytest.mark.parametrize("make", [phi3, llama])
@pytest.mark.parametrize("length", [8, 9, 20])
@torch.no_grad()
def test_scores_are_those_of_one_forward_pass(make: Any, length: int, device: str) -> None:
    theirs, ids = make(), prompts(length)
    logits = theirs(ids).logits[:, :-1].log_softmax(-1)
    expected = logits.gather(2, ids[:, 1:, None])[..., 0]
    found = decoding.load(theirs, device, dtype="float32").score(ids).token_logprobs
    torch.testing.assert_close(found[:, 1:].cpu().float(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [phi3, llama])
def test_pages_of_another_table_are_not_found(make: Any, device: str) -> None:
    """A short text's first page has other keys than that of a long one which begins alike."""
    theirs, text = make(within=20), prompts(32)[:1]
    model = decoding.load(theirs, device, dtype="float32")
    options = OPTIONS | {"num_beams": 2, "max_new_tokens": 2, "output_scores": False}
    with decoding.Engine(model) as engine:
        for length in (18, 32, 18, 32):
            ids = text[:, :length]
            found = engine.submit(ids[0], **options).result(60)
            assert rows_of(found) == rows_of(theirs.generate(ids, **options))
        assert engine.stats()["prefix_hits"] == 2 * 16


def test_a_row_does_not_outgrow_its_table() -> None:
    """transformers would read the whole row again."""
    model = decoding.load(phi3(), "cpu", threads=1)
    with pytest.raises(ValueError, match="has 8 for such a prompt: pass max_new_tokens=3 or less"):
        model.generate(prompts(6), **OPTIONS, max_new_tokens=4)
    with pytest.raises(ValueError, match="need 49 positions, the model has 48"):
        model.generate(prompts(9), **OPTIONS, max_new_tokens=41)
    with pytest.raises(ValueError, match="need 41 positions, the model has 40"):
        decoding.load(llama(), "cpu", threads=1).generate(prompts(9), max_new_tokens=33)


def test_longrope_in_the_first_files_of_phi3() -> None:
    """There it is called "su", and only the configuration has the original positions."""
    sizes = {"max_position_embeddings": 48, "original_max_position_embeddings": WITHIN}
    factors = {name: LONGROPE[name] for name in ("short_factor", "long_factor")}
    old = sizes | {"rope_theta": 100.0, "rope_scaling": {"type": "su", **factors}}
    spec, weights = rotary(old, 8)
    expected, same = rotary(phi3().config.to_dict(), 8)
    assert spec == expected and spec.tables == 2
    assert np.array_equal(weights["decoder.rotary"], same["decoder.rotary"])
