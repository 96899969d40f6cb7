"""Logits are written only for steps in which something reads them, and it changes no bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import decoding
from decoding.models.weights.dtypes import as_tensor
from tests.support.random_models import load

IDS = torch.tensor([[12, 13, 14, 15], [16, 17, 18, 19], [20, 12, 22, 23]])
STEPS = 6


class OneByOne:
    """An engine that takes steps one by one and remembers which have written logits.

    parts: every step goes the long way, by way of its logits.
    """

    def __init__(self, model: decoding.Model, parts: bool) -> None:
        self.engine, self.parts = model._session._engine, parts
        self.written: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def step(self, steps: int) -> bool:
        logits = as_tensor(self.engine.state()["logits"]).fill_(torch.nan)
        if self.parts:
            self.engine.compute()
            self.engine.select()
            done = self.engine.update()
        else:
            done = self.engine.step(1)
        self.written.append(not bool(logits.isnan().all()))
        return done


def run(name: str, dtype: str, options: dict[str, Any], parts: bool) -> tuple[Any, list[bool]]:
    model = load(name, dtype=dtype, threads=2)
    options = {"max_new_tokens": STEPS, "return_dict_in_generate": True, **options}
    model.generate(IDS, **options)  # plans
    model._open_runner = copy.copy(model._session)
    engine = OneByOne(model, parts)
    model._session._engine = engine
    found = model.generate(IDS, min_new_tokens=STEPS, **options)
    return found, engine.written


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["marian-large", "gpt2-wide"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bad_words_ids": [[21], [7]]},
        {"num_beams": 3, "num_return_sequences": 3},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    ],
    ids=lambda options: "-".join(options) or "greedy",
)
def test_plain_searches_write_none(name: str, dtype: str, options: dict[str, Any]) -> None:
    options = {**options, "attention_mask": torch.ones_like(IDS)}
    if "num_beams" in options:
        options["output_sequences_scores"] = True
    found, written = run(name, dtype, options, parts=False)
    expected, always = run(name, dtype, options, parts=True)
    assert len(written) == STEPS and not any(written) and all(always)
    assert torch.equal(found.sequences, expected.sequences)
    if "num_beams" in options:
        assert torch.equal(found.sequences_scores, expected.sequences_scores)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"do_sample": True, "seed": 1}, range(STEPS)),
        ({"num_beams": 2, "renormalize_logits": True, "bad_words_ids": [[7]]}, range(STEPS)),
        ({"repetition_penalty": 1.2}, range(STEPS)),
        ({"forced_bos_token_id": 9}, [0]),
        ({"num_beams": 2, "forced_eos_token_id": 1}, [STEPS - 1]),
    ],
    ids=lambda options: "-".join(options) if isinstance(options, dict) else "",
)
def test_others_write_them_where_they_are_read(options: dict[str, Any], steps: Any) -> None:
    written = run("marian-large", "float32", options, parts=False)[1]
    assert [step for step, has in enumerate(written) if has] == list(steps)
