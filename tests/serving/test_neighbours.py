"""What others do beside a request, or before and after it in the same pages, does not change it."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import decoding
from tests.serving.engines import (
    FULL,
    SICK,
    assert_idle,
    assert_same,
    outcome,
    sick,
    tight_engine,
)
from tests.support.grammar import tokenizer
from tests.support.random_models import ours

OPTIONS: dict[str, Any] = {"max_new_tokens": 14, "eos_token_id": None, "bad_words_ids": [[SICK]]}
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2},
    {"do_sample": True, "seed": 3, "num_return_sequences": 2, "top_k": 9},
]


def neighbour(engine: decoding.Engine, draw: random.Random) -> Any:
    """A request of any kind: one in four is sick, and one in four is cancelled at once."""
    row = [draw.randrange(40, 300) for _ in range(draw.randint(1, 20))]
    row += [SICK] * (draw.random() < 0.25)
    options = OPTIONS | {"max_new_tokens": draw.randint(1, 20)} | draw.choice(SEARCHES)
    request = engine.submit(row, **options)
    if draw.random() < 0.25:
        request.cancel()
    return request


def test_whoever_steps_beside_a_request(device: str) -> None:
    """Nobody, or up to 60 others, which come and go, fail and are cancelled: the same bits."""
    model, draw = sick("gpt2-wide", device), random.Random(0)
    row = [45, 46, 47, 48]
    with decoding.Engine(model, max_requests=32) as engine:
        for search in SEARCHES:
            options = OPTIONS | search | FULL
            alone = engine.submit(row, **options).result(60)
            assert_same(alone, model.generate([row], **options), device)
            for crowd in (1, 6, 60):
                others = [neighbour(engine, draw) for _ in range(crowd)]
                request = engine.submit(row, priority=1, **options)
                others += [neighbour(engine, draw) for _ in range(crowd // 2)]
                assert_same(request.result(60), alone, device)
                ends = [outcome(other.result) for other in others]
                kinds = {type(end) for end in ends if isinstance(end, Exception)}
                assert kinds <= {decoding.Cancelled, decoding.Error}
        assert_idle(engine)


def test_three_times_the_pages(device: str) -> None:
    """More than fits at once, and a request that needs all there is: none starves or changes."""
    model, draw = ours("gpt2", device), random.Random(0)
    pages = 12
    with tight_engine(model, rows=8, pages=pages) as tight:
        given: list[tuple[list[int], dict[str, Any]]] = []
        for i in range(40):
            row = [draw.randrange(4, 55) for _ in range(draw.randint(1, 30))]
            given.append((row, {"max_new_tokens": 12, "num_beams": 1 + i % 3}))
        whole: dict[str, Any] = {"max_new_tokens": 24, "num_beams": 8}  # 8 * 24 cells, of 16 a page
        given.insert(10, ([5], whole))
        requests = [tight.submit(row, **options) for row, options in given]
        for (row, options), request in zip(given, requests, strict=True):
            assert_same(request.result(60), model.generate([row], **options), device)
        more = rf"may need {pages + 1} pages \(\d+ bytes\), the engine has {pages} \(\d+ bytes\)"
        with pytest.raises(decoding.Error, match=more):
            tight.submit([5, 6], **whole)  # a page for the prompt
        assert_idle(tight)


def endings(model: Any, row: list[int], step: int) -> list[dict[str, Any]]:
    """Options with which greedy search ends in that step, or about then."""
    width = len(row)
    found = model.generate([row], max_new_tokens=step, eos_token_id=None)[0, width:].tolist()
    text = tokenizer().decode(found[-1:])
    return [
        {"max_new_tokens": step},
        {"eos_token_id": [found[-1]]},
        {"stop_strings": [text], "tokenizer": tokenizer()},
        {"deadline": step * 3e-4},
    ]


@pytest.mark.parametrize("after", range(1, 5))
def test_steps_beyond_an_end(after: int, device: str) -> None:
    """A GPU may be ahead of a request's end, whichever it is: nothing of these steps is delivered,
    and who takes over its pages finds what it finds alone."""
    model, row = ours("gpt2", device), [5, 6, 7]
    longest: dict[str, Any] = {"max_new_tokens": 16, "eos_token_id": None}
    with tight_engine(model, rows=2, pages=6) as tight:
        for ending in endings(model, row, after):
            first = tight.submit(row, stream=True, **(longest | ending))
            next_rows = [[8 + after, i] for i in range(4, 7)]
            options = longest | {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}
            later = [tight.submit(other, **options) for other in next_rows]
            found = outcome(lambda: list(first))  # noqa: B023
            if isinstance(found, TimeoutError):
                assert "deadline" in ending
            else:
                own = {key: value for key, value in ending.items() if key != "deadline"}
                expected = model.generate([row], **(longest | own))
                tokens = list(itertools.chain.from_iterable(new for [new] in found))
                assert [*row, *tokens] == expected[0].tolist()
                assert_same(first.result(60), expected, device)
            for other, request in zip(next_rows, later, strict=True):
                assert_same(request.result(60), model.generate([other], **options), device)
        assert_idle(tight)
