"""Sessions: memory that nobody wrote, faults, instruction sets."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch

import decoding
from decoding import _C, models
from decoding.engine import session
from decoding.models.weights.dtypes import as_tensor
from tests.support.comparison import assert_close_scores
from tests.support.packed import pack
from tests.support.random_models import load, ours, reference, spec_of
from tests.support.sessions import LIMITS, run, same, tokens


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 1},
        {"num_beams": 1, "do_sample": True, "seed": 3},
        {"do_sample": True, "seed": 3},
        {"num_beam_groups": 3, "diversity_penalty": 0.5},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "bad_words_ids": [[20, 21]]},
    ],
)
def test_nothing_reads_memory_that_was_not_written(
    name: str, options: dict[str, Any], device: str
) -> None:
    model = load(name, device, limits=replace(LIMITS, batch=5, prompt=4, controls=64), threads=2)
    mask = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
    options = options | {"attention_mask": mask, "output_scores": True}
    pool = as_tensor(model._session._pool)
    pool.zero_()
    before = run(model, tokens(3), **options)
    pool.fill_(255)  # as float32: NaN; as int32: -1
    after = run(model, tokens(3), **options)
    assert torch.equal(before.sequences, after.sequences)
    assert all(torch.equal(a, b) for a, b in zip(before.scores, after.scores, strict=True))


class Interrupted:
    """An engine that Ctrl-C stops at its second chunk of steps."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.steps = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def step(self, steps: int) -> bool:
        self.steps += 1
        if self.steps == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return bool(self.engine.step(steps))


def test_ctrl_c_passes_between_steps_and_the_model_stays_usable(device: str) -> None:
    model = load("gpt2", device, threads=2)
    before = run(model, tokens())
    engine = model._session._engine
    model._session._engine = Interrupted(engine)
    with pytest.raises(KeyboardInterrupt):
        run(model, tokens(), max_new_tokens=40, eos_token_id=None)
    model._session._engine = engine
    assert same(run(model, tokens()), before, device)


def test_numbers_that_are_not_finite_name_item_and_step(device: str) -> None:
    broken = reference("gpt2")
    state = {name: tensor.clone() for name, tensor in broken.state_dict().items()}
    try:
        broken.transformer.wte.weight.data[37] = 3e38  # its norm overflows
        model = decoding.load(broken, device, "float32")
    finally:
        broken.load_state_dict(state)
    ids = torch.tensor(
        [
            [12],
            [37],
            [
                13,
            ],
            [14],
        ]
    )
    options: dict[str, Any] = {"bad_words_ids": [[37]], "eos_token_id": None}
    searches: list[dict[str, Any]] = [{"num_beams": 1}, {}, {"num_beams": 1, "do_sample": True}]
    for search in searches:
        with pytest.raises(decoding.Error, match="not finite .* item 1 at step 1"):
            run(model, ids, **options, **search)
        model.generate(ids[2:], **options, **search)
    with pytest.raises(decoding.Error, match="not finite .* item 0 at step 2"):
        run(model, ids[:1], forced_bos_token_id=37)
    assert same(
        run(model, ids[2:], **options), run(ours("gpt2", device), ids[2:], **options), device
    )


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_every_instruction_set_finds_the_same(name: str, isa: str) -> None:
    loaded = models.load(reference(name))
    model, spec = decoding.Model(loaded, threads=1), spec_of(loaded)
    engine = _C.Session(spec, pack(loaded.state, spec), threads=1, isa=isa)
    model._open_runner = session.Session(spec, engine, device=model.place, limits=None)
    assert model.isa == isa
    found, expected = run(model, tokens(5, 6)), run(ours(name), tokens(5, 6))
    assert torch.equal(found.sequences, expected.sequences)
    assert_close_scores(found.sequences_scores, expected.sequences_scores)
