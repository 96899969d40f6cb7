"""Group diverse beam search through generate(), against the reference.

transformers 5 has none; test_transformers_4.py holds the reference to what transformers 4 gave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from decoding import reference
from decoding.reference import FILL_IN, Rules, Tokens
from tests.search.count_penalties import CountPenalties
from tests.search.test_reference import PROMPTS, logits_of
from tests.support import random_models

PROCESSORS: dict[str, tuple[Any, Any]] = {
    "repetition_penalty": (1.4, RepetitionPenaltyLogitsProcessor),
    "no_repeat_ngram_size": (2, NoRepeatNGramLogitsProcessor),
    "bad_words_ids": ([[5, 6], [9]], NoBadWordsLogitsProcessor),
    "sequence_bias": ({(7,): 2.5, (3, 4): 3.0, (12,): -2.0}, SequenceBiasLogitsProcessor),
    "frequency_penalty": (0.6, CountPenalties),
}
ORDER = [
    "sequence_bias",
    "repetition_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
]


@dataclass(frozen=True)
class Processed(Rules):
    """Rules by which transformers' own processors change the scores of the row last asked for."""

    processors: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    row: list[int] = field(default_factory=list)

    def apply(self, scores: Tensor, step: int) -> Tensor:
        scores = self.processors(torch.tensor([self.row]), scores[None])[0]
        return super().apply(scores, step)


def processor(name: str, key: str) -> Any:
    value, kind = PROCESSORS[key]
    width = len(start(name))
    return kind(width, value) if kind is CountPenalties else kind(value)


def start(name: str) -> list[int]:
    return [59] if name == "marian" else list(PROMPTS[name])


def check(name: str, rules: Processed, groups: int, size: int, device: str, **options: Any) -> None:
    penalty = options.pop("diversity_penalty")
    controls = {key: options.pop(key) for key in ORDER if key in options}
    first = start(name)

    def logits(tokens: Tokens) -> Tensor:
        rules.row[:] = [*first, *tokens]
        return logits_of(name)(tokens)

    expected = reference.diverse_beam_search(
        logits, rules, beams=groups * size, groups=groups, penalty=penalty, pad=7, **options
    )
    ours = random_models.ours(name, device).generate(
        torch.tensor([PROMPTS[name]], device=device), max_new_tokens=rules.max_new,
        num_beams=groups * size, num_beam_groups=groups, num_return_sequences=groups * size,
        diversity_penalty=penalty, eos_token_id=list(rules.eos), pad_token_id=7,
        forced_eos_token_id=list(rules.forced_last) or None, min_new_tokens=rules.min_new or None,
        return_dict_in_generate=True, output_scores=True, **controls, **options,
    )  # fmt: skip
    for row, ids, score in zip(expected, ours.sequences, ours.sequences_scores, strict=True):
        assert (row.score <= FILL_IN / 10) == (float(score) <= FILL_IN / 10)
        if row.score > FILL_IN / 10:
            assert list(row.tokens) == ids[len(first) :][: len(row.tokens)].tolist()
            assert float(score) == pytest.approx(row.score, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", PROMPTS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    groups=st.integers(2, 3),
    size=st.integers(1, 3),
    penalty=st.sampled_from([0.3, 1.0, 5.0]),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
    controls=st.sets(st.sampled_from(ORDER)) | st.just(set()),
)
def test_searches_equal_the_reference(
    name: str, device: str, data: st.DataObject, groups: int, size: int, penalty: float,
    length_penalty: float, early_stopping: bool | str, controls: set[str],
) -> None:  # fmt: skip
    eos = random_models.reference(name).config.eos_token_id
    wanted = [key for key in ORDER if key in controls]
    rules = Processed(
        max_new=data.draw(st.integers(1, 9)),
        min_new=data.draw(st.integers(0, 1)),
        eos=(eos, *data.draw(st.sets(st.integers(10, 20), max_size=1))),
        forced_last=data.draw(st.sampled_from([(), (eos,)])),
        processors=LogitsProcessorList(processor(name, key) for key in wanted),
    )
    check(
        name, rules, groups, size, device, diversity_penalty=penalty,
        length_penalty=length_penalty, early_stopping=early_stopping,
        **{key: PROCESSORS[key][0] for key in wanted},
    )  # fmt: skip
