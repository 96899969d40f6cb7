"""Constrained beam search (force_words_ids) through generate(), against the reference.

transformers 5 has none; test_transformers_4.py holds the reference to what transformers 4 gave.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from decoding.reference import FILL_IN, Phrase, Phrases, Rules, Tokens, constrained_beam_search
from tests.search.test_reference import PROMPTS, logits_of
from tests.support import random_models

WORD = st.lists(st.integers(4, 50), min_size=1, max_size=3).map(tuple)
CHOICE = st.tuples(st.integers(4, 20), st.integers(21, 50)).map(
    lambda two: ((two[0],), (two[1], 5))
)


@pytest.mark.parametrize("name", PROMPTS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    phrases=st.lists(WORD.map(lambda word: (word,)) | CHOICE, min_size=1, max_size=3).map(tuple),
    beams=st.integers(2, 5),
    max_new=st.integers(3, 12),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
)
def test_searches_equal_the_reference(
    name: str, device: str, phrases: tuple[Phrase, ...], beams: int, max_new: int,
    length_penalty: float, early_stopping: bool | str,
) -> None:  # fmt: skip
    prompt: Tokens = (59,) if name == "marian" else PROMPTS[name]
    eos = random_models.reference(name).config.eos_token_id
    assume(eos not in {token for phrase in phrases for word in phrase for token in word})
    options: dict[str, Any] = {
        "length_penalty": length_penalty, "early_stopping": early_stopping,
    }  # fmt: skip
    expected = constrained_beam_search(
        logits_of(name), Rules(max_new, eos=(eos,)), Phrases(phrases), beams=beams, prompt=prompt,
        **options,
    )  # fmt: skip
    ours = random_models.ours(name, device).generate(
        torch.tensor([PROMPTS[name]], device=device),
        # Hugging Face's two forms: a word, or alternatives.
        force_words_ids=[list(map(list, p)) if len(p) > 1 else list(p[0]) for p in phrases],
        num_beams=beams, num_return_sequences=beams, max_new_tokens=max_new, eos_token_id=eos,
        pad_token_id=0, return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip
    for row, ids, score in zip(expected, ours.sequences, ours.sequences_scores, strict=True):
        assert (row.score <= FILL_IN / 10) == (float(score) <= FILL_IN / 10)
        if row.score > FILL_IN / 10:
            assert list(row.tokens) == ids[len(prompt) :][: len(row.tokens)].tolist()
            assert float(score) == pytest.approx(row.score, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", PROMPTS)
def test_sentences_of_a_batch_have_words_of_one_call(name: str, device: str) -> None:
    """Each holds them all, alone as among others, beside other controls."""
    torch.manual_seed(1)
    ids = torch.randint(4, 50, (5, 3), device=device)
    options = {
        "force_words_ids": [[7, 8], [[21], [9, 30]]], "num_beams": 4, "max_new_tokens": 12,
        "repetition_penalty": 1.2, "pad_token_id": 0,
    }  # fmt: skip
    model = random_models.ours(name, device)
    together = model.generate(ids, **options).tolist()
    for sentence, row in zip(ids, together, strict=True):
        text = " ".join(map(str, ["", *row, ""]))
        assert " 7 8 " in text and (" 21 " in text or " 9 30 " in text)
        alone = model.generate(sentence[None], **options)[0].tolist()
        assert row[: len(alone)] == alone
