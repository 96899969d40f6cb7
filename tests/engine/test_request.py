"""Sentences with options of their own, side by side in one request, each as it is alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from decoding import _C, models
from decoding.models.spec import ModelSpec
from tests.support.packed import pack

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
ROWS = 3
ALL: dict[str, list[Any]] = {
    "max_new": [6, 9, 4],
    "seed": [1, 2, 3],
    "eos": [[0], [5, 9], [11]],
    "pad": [0, 1, 2],
}
KINDS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "greedy": (_C.Greedy(), {"min_new": [2, 0, 4], "bad_words": [[[7]], [], [[3], [4]]]}),
    "forced": (_C.Greedy(), {"forced_first": [-1, 8, 3], "forced_last": [[2], [], [4, 5]]}),
    "sampling": (_C.Sampling(), {"top_k": [5, 0, 9], "temperature": [0.7, 1.3, 1.0]}),
    "filters": (_C.Sampling(), {"min_p": [0.1, 0.0, 0.02], "typical_p": [1.0, 0.9, 0.5]}),
    "processors": (
        _C.Greedy(),
        {
            "repetition_penalty": [1.0, 1.7, 0.6],
            "frequency_penalty": [0.4, 0.0, -0.3],
            "presence_penalty": [0.0, 0.8, 0.2],
            "no_repeat_ngram_size": [0, 1, 2],
            "sequence_bias": [[((3,), 2.0)], [], [((6, 2), -4.0)]],
            "suppress_tokens": [[], [3, 4], [9]],
        },
    ),
    "beam": (
        _C.Beam(),
        {"length_penalty": [1.0, 0.3, 2.0], "early_stopping": ["no", "yes", "never"]},
    ),
    "normalized": (
        _C.Beam(),
        {
            "length_normalization": ["gnmt", "power", "gnmt"],
            "diversity_rate": [0.0, 0.5, 0.1],
            "renormalize": [True, False, True],
        },
    ),
}


class Engine:
    def __init__(self) -> None:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=2, n_head=2)
        loaded = models.load(GPT2LMHeadModel(config).eval())
        assert isinstance(loaded.spec, ModelSpec)
        state = pack(loaded.state, loaded.spec)
        self.engine = _C.Session(loaded.spec, state, threads=2, isa=_C.isas()[0])
        limits = _C.Limits(
            batch=3, beams=ROWS, source=0, prompt=4, target=9, candidates=3 * ROWS, controls=999
        )
        _, size = self.engine.plan(limits)
        self.pool = torch.empty(size + 256, dtype=torch.uint8)
        self.pool = self.pool[-self.pool.data_ptr() % 256 :][:size]
        self.engine.bind(limits, self.pool)

    def run(
        self,
        search: Any,
        chosen: list[int],
        options: dict[str, list[Any]],
        shared: _C.Request | None = None,
    ) -> list[Any]:
        """(tokens, scores) of the chosen sentences. shared: what they have beside `options`."""
        made = shared or _C.Request(sentences=1, rows_per_sentence=ROWS, search=search)
        prompts = [PROMPTS[b] for b in chosen]
        mine: dict[str, Any] = {name: [of[b] for b in chosen] for name, of in options.items()}
        offsets = torch.tensor([0, *map(len, prompts)]).cumsum(0).int()
        padded = [[0] * (4 - len(prompt)) + prompt for prompt in prompts]
        request = made.for_sentences(
            len(chosen),
            prompt=torch.tensor(padded, dtype=torch.int32),
            prompt_first=[4 - len(prompt) for prompt in prompts],
            **mine,
        )
        batch = _C.Batch(
            prompt=torch.tensor([id for prompt in prompts for id in prompt], dtype=torch.int32),
            prompt_offsets=offsets,
            sentence_ids=torch.tensor(chosen, dtype=torch.int32),
        )
        self.engine.start(request, batch)
        while not self.engine.step(4):
            pass
        shape = (len(chosen), ROWS)
        tokens = torch.full((*shape, 9), -1, dtype=torch.int32)
        lengths = torch.empty(shape, dtype=torch.int32)
        scores, sums = torch.empty(shape), torch.empty(shape)
        rows = torch.full((*shape, 9), -1, dtype=torch.int32)
        self.engine.fetch(tokens, lengths, scores, sums, rows)
        return [(tokens[i].tolist(), bits(scores[i])) for i in range(len(chosen))]


def bits(scores: Tensor) -> list[int]:
    found: list[int] = scores.contiguous().view(torch.int32).tolist()
    return found


@pytest.mark.parametrize("kind", list(KINDS))
def test_sentences_have_options_of_their_own(kind: str) -> None:
    search, own = KINDS[kind]
    engine = Engine()
    options: dict[str, list[Any]] = {**ALL, **own}
    together = engine.run(search, [0, 1, 2], options)
    assert together == [engine.run(search, [b], options)[0] for b in range(3)]
    same = {name: [values[0]] * 3 for name, values in options.items()}
    assert together != engine.run(search, [0, 1, 2], same), "the test shows nothing"


def test_an_option_has_one_value_or_one_for_each_sentence() -> None:
    with pytest.raises(_C.Error, match="max_new must be one value or 2, one for each sentence"):
        _C.Request(sentences=2, max_new=[1, 2, 3])
    with pytest.raises(TypeError, match="Request has no option typical"):
        _C.Request(sentences=2, max_new=1, typical=0.5)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("prompt", "repetition_penalty"),
        ("prompt", "frequency_penalty"),
        ("prompt", "presence_penalty"),
        ("source", "encoder_repetition_penalty"),
    ],
)
def test_texts_that_an_option_reads_must_be_there(text: str, option: str) -> None:
    options: dict[str, Any] = {option: 2.0}
    request = _C.Request(sentences=1, max_new=1, **options)
    batch = _C.Batch(**numbers(prompt=[1, 2], prompt_offsets=[0, 2], sentence_ids=[0]))
    with pytest.raises(_C.Error, match=f"{text} must be given: an option of sentence 0 reads it"):
        Engine().engine.start(request, batch)


def numbers(**lists: list[int]) -> dict[str, Any]:
    return {name: torch.tensor(given, dtype=torch.int32) for name, given in lists.items()}


def test_sentences_share_options_beside_their_own() -> None:
    """As if each sentence had been given all of them."""
    shared: dict[str, Any] = {
        "eos": [0],
        "bad_words": [[7], [3, 4]],
        "seed": 3,
        "suppress_tokens": [8],
    }
    options: dict[str, list[Any]] = {
        **{name: [value] * 3 for name, value in shared.items()},
        "max_new": [6, 9, 4],
        "repetition_penalty": [1.0, 1.7, 0.6],
    }
    engine = Engine()
    expected = engine.run(_C.Sampling(), [0, 1, 2], options)
    known = _C.Request(sentences=1, rows_per_sentence=ROWS, search=_C.Sampling(), **shared)
    own = {name: options[name] for name in options if name not in shared}
    found = engine.run(_C.Sampling(), [0, 1, 2], own, known)
    assert found == expected
    with pytest.raises(_C.Error, match="shared from one sentence, not from 2"):
        known.for_sentences(2).for_sentences(1)
