"""The reference against transformers: what it says is what generate() does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from decoding import reference
from decoding.reference import FILL_IN, Logits, Rules, Tokens
from tests.conftest import random
from tests.support.random_models import reference as transformers_model

PROMPTS: dict[str, Tokens] = {"gpt2": (4, 8, 15), "gpt2-pad": (16,), "marian": (23, 42, 9, 3)}
VOCAB = 60


def logits_of(name: str) -> Logits:
    """The next token's logits, from a forward pass over the whole row."""
    model, prompt = transformers_model(name), PROMPTS[name]

    def logits(tokens: Tokens) -> Tensor:
        inputs = {"input_ids": torch.tensor([[*prompt, *tokens]])}
        if model.config.is_encoder_decoder:
            row = torch.tensor([[model.config.decoder_start_token_id, *tokens]])
            inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": row}
        with torch.no_grad():
            out: Tensor = model(**inputs).logits
        return out[0, -1]

    return logits


def generate(name: str, rules: Rules, **options: Any) -> Any:
    model = transformers_model(name)
    return model.generate(
        torch.tensor([PROMPTS[name]]),
        max_new_tokens=rules.max_new,
        min_new_tokens=rules.min_new or None,
        eos_token_id=list(rules.eos) or None,
        pad_token_id=0,
        suppress_tokens=list(rules.banned) or None,
        forced_bos_token_id=rules.forced_first[0] if rules.forced_first else None,
        forced_eos_token_id=list(rules.forced_last) or None,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@st.composite
def some_rules(draw: st.DrawFn, name: str) -> Rules:
    ids = st.integers(0, VOCAB - 1)
    one = st.lists(ids, max_size=1).map(tuple)
    # A prompt longer than a token has no forced first one.
    first, last = draw(one) if name != "gpt2" else (), draw(one)
    max_new = draw(st.integers(1, 8))
    return Rules(
        max_new=max_new,
        min_new=draw(st.integers(0, min(3, max_new))),
        eos=(transformers_model(name).config.eos_token_id, *draw(st.sets(ids, max_size=2))),
        banned=tuple(draw(st.sets(ids, max_size=3)) - {*first, *last}),
        forced_first=first,
        forced_last=last,
    )


@pytest.mark.parametrize("name", PROMPTS)
@settings(max_examples=15)
@given(data=st.data())
def test_greedy(name: str, data: st.DataObject) -> None:
    rules = data.draw(some_rules(name))
    ours = reference.greedy(logits_of(name), rules)
    start = 1 if name == "marian" else len(PROMPTS[name])
    theirs = generate(name, rules).sequences[0, start:].tolist()
    assert list(ours) == theirs


@pytest.mark.parametrize("name", PROMPTS)
@settings(max_examples=30)
@given(
    data=st.data(),
    beams=st.integers(2, 5),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
)
def test_beam_search(
    name: str, data: st.DataObject, beams: int, length_penalty: float, early_stopping: bool | str
) -> None:
    rules = data.draw(some_rules(name))
    options: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    ours = reference.beam_search(logits_of(name), rules, beams=beams, **options)
    theirs = generate(name, rules, num_beams=beams, num_return_sequences=beams, **options)
    start = 1 if name == "marian" else len(PROMPTS[name])
    assert len(ours) == beams
    for row, ids, score, parents in zip(
        ours, theirs.sequences, theirs.sequences_scores, theirs.beam_indices, strict=True
    ):
        if row.score > FILL_IN / 10:
            length = len(row.tokens)
            assert list(row.tokens) == ids[start : start + length].tolist()
            assert row.score == pytest.approx(float(score), rel=1e-4, abs=1e-4)
            assert list(row.beams) == [b for b in parents.tolist() if b >= 0]


@given(
    seed=st.integers(0, 2**32 - 1),
    sharpness=st.sampled_from([0.5, 2.0, 8.0]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 300]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
def test_filters(seed: int, sharpness: float, temperature: float, top_k: int, top_p: float) -> None:
    scores = random(200, seed=seed) * sharpness
    scores[::7] = scores[3]  # ties, which top-k keeps
    if top_p < 1.0:
        scores += 1e-3 * random(200, seed=seed + 1)  # and of which top-p keeps any
    filters = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        filters.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        filters.append(TopPLogitsWarper(top_p))
    theirs = filters(torch.zeros(1, 0, dtype=torch.long), scores[None])[0]
    ours = reference.filtered(scores, temperature=temperature, top_k=top_k, top_p=top_p)
    torch.testing.assert_close(ours.float(), theirs)


@pytest.mark.parametrize("name", PROMPTS)
def test_samples_are_rows_of_kept_tokens(name: str) -> None:
    logits, rules = logits_of(name), Rules(max_new=6, eos=(1, 3))
    rows = {reference.sample(logits, rules, seed=seed, top_k=4) for seed in range(8)}
    assert len(rows) > 1
    for row in rows:
        assert len(row) == 6 or row[-1] in rules.eos
        for step, token in enumerate(row):
            assert token in logits(row[:step]).topk(4).indices
    assert reference.sample(logits, rules, seed=0, top_k=1) == reference.greedy(logits, rules)


def test_nothing_left_to_sample() -> None:
    with pytest.raises(ValueError, match="step 1"):
        reference.sample(lambda _: torch.zeros(2), Rules(max_new=3, banned=(0, 1)), seed=0)


def table(vocab: int) -> Logits:
    """Logits that are a hash of the row."""

    def logits(tokens: Tokens) -> Tensor:
        return 2 * random(vocab, seed=hash(tokens) & 0xFFFFFFFF)

    return logits


@pytest.mark.parametrize("gnmt", [False, True])
@pytest.mark.parametrize("length_penalty", [0.4, 1.5])
def test_enough_beams_find_the_best_row(length_penalty: float, gnmt: bool) -> None:
    logits, eos, most = table(4), 0, 4
    rows = [row for n in range(most + 1) for row in itertools.product(range(1, 4), repeat=n)]
    rows = [row if len(row) == most else (*row, eos) for row in rows]

    def score(row: Tokens) -> float:
        steps = [logits(row[:t]).log_softmax(-1)[token] for t, token in enumerate(row)]
        length = (5 + len(row)) / 6 if gnmt else len(row)
        return float(sum(steps)) / length**length_penalty

    found = reference.beam_search(
        logits, Rules(most, eos=(eos,)), beams=4**4, length_penalty=length_penalty, gnmt=gnmt,
        early_stopping="never",
    )  # fmt: skip
    assert found[0].tokens == max(rows, key=score)
    assert found[0].score == pytest.approx(score(found[0].tokens))


def test_patience_waits_for_more_rows() -> None:
    def search(patience: float) -> list[reference.Hypothesis]:
        return reference.beam_search(
            table(12), Rules(30, eos=(0, 1)), beams=3, early_stopping=True, patience=patience
        )

    impatient, patient = search(1.0), search(3.0)
    assert len(impatient) == 3 and len(patient) == 9
    assert {row.tokens for row in impatient} < {row.tokens for row in patient}
    assert max(len(row.tokens) for row in patient) > max(len(row.tokens) for row in impatient)


def test_rank_among_siblings_decides_whose_children_go_on() -> None:
    """With a rate that nothing outweighs every beam has one child, and no score is changed."""
    logits, rules = table(20), Rules(5)
    rows = reference.beam_search(logits, rules, beams=3, diversity_rate=1e4)
    assert sorted(row.beams[1:] for row in rows) == [(beam,) * 4 for beam in range(3)]
    for row in rows:
        steps = [logits(row.tokens[:t]).log_softmax(-1).max() for t in range(1, 5)]
        first = logits(()).log_softmax(-1)[row.tokens[0]]
        assert row.sum == pytest.approx(float(first + sum(steps)), rel=1e-5)
