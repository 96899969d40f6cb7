"""Engines that admit more than their pages hold, and swap requests out and back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import decoding
from tests.serving.engines import FULL, assert_idle, assert_same, outcome, tight_engine
from tests.serving.test_engine import SEARCHES, sentences
from tests.support.random_models import ours

names = pytest.mark.parametrize("name", ["marian-long", "gpt2-long"])
LONG: dict[str, Any] = {"eos_token_id": None, "max_new_tokens": 100}
LENGTHS: list[dict[str, Any]] = [LONG, {"max_new_tokens": 100}, {"max_new_tokens": 3}]


def swapping(name: str, pages: int, device: str = "cpu", rows: int = 48) -> decoding.Engine:
    return tight_engine(ours(name, device), rows, pages, overcommit=True)


def assert_as_alone(
    engine: decoding.Engine, name: str, asked: list[dict[str, Any]], device: str = "cpu"
) -> None:
    """Each request gives what generate() gives for it, though they are swapped out meanwhile."""
    requests = [engine.submit(**given, **FULL) for given in asked]
    found = [outcome(lambda: request.result(120)) for request in requests]  # noqa: B023
    for given, result in zip(asked, found, strict=True):
        batch = {k: [v] if k.endswith("input_ids") else v for k, v in given.items()}
        alone = outcome(lambda: ours(name, device).generate(**batch, **FULL))  # noqa: B023
        assert_same(result, alone, device)
    assert_idle(engine)
    assert engine.stats()["swapped"] == 0


@names
def test_a_third_of_the_pages_is_enough(name: str, device: str) -> None:
    """Every search, long and short ones side by side."""
    asked = [{**search, **lengths} for search in SEARCHES for lengths in LENGTHS]
    given = [{"input_ids": ids, **a} for ids, a in zip(sentences(len(asked)), asked, strict=True)]
    with swapping(name, 64, device) as engine:
        assert_as_alone(engine, name, given, device)
        stats = engine.stats()
        assert stats["swaps"] > 5 and stats["swapped_bytes"] > stats["swaps"]


@pytest.mark.parametrize("beams", [1, 3, 4, 5, 8])
def test_pages_end_anywhere_in_a_group(beams: int, device: str) -> None:
    """Groups of any number of rows, whose cells end within a page at each step."""
    asked = [
        {"input_ids": ids, "num_beams": beams, "num_return_sequences": beams, **LONG}
        for ids in sentences(12, seed=beams)
    ]
    with swapping("gpt2-long", 8 * beams + 8, device) as engine:
        assert_as_alone(engine, "gpt2-long", asked, device)
        assert engine.stats()["swaps"] > 0


def test_prompts_of_an_encoder_decoder(device: str) -> None:
    """Their first tokens are own cells of the first row."""
    asked = [
        {"input_ids": ids, "decoder_input_ids": [159 % 60, *ids], "num_beams": 3, **LONG}
        for ids in sentences(12, seed=3)
    ]
    with swapping("marian-long", 36, device) as engine:
        assert_as_alone(engine, "marian-long", asked, device)
        assert engine.stats()["swaps"] > 0


def test_requests_that_share_a_prompt(device: str) -> None:
    """Shared pages stay where they are."""
    prompt = [5 + i % 40 for i in range(49)]
    asked = [
        {"input_ids": [*prompt, i], "do_sample": True, "seed": i, **LONG} for i in range(4, 24)
    ]
    with swapping("gpt2-long", 40, device) as engine:
        assert_as_alone(engine, "gpt2-long", asked, device)
        stats = engine.stats()
        assert stats["swaps"] > 0 and stats["prefix_hits"] > 0


def test_one_that_needs_the_whole_pool(device: str) -> None:
    """It gets it, among others; one that needs a page more is refused, with the bytes."""
    prompt = [5 + i % 40 for i in range(33)]
    whole = {"input_ids": prompt, "num_beams": 4, **LONG, "max_new_tokens": 72}
    others = [{"input_ids": ids, **LONG} for ids in sentences(20)]
    with swapping("gpt2-long", 2 + 4 * 72 // 16, device) as engine:
        assert_as_alone(engine, "gpt2-long", [*others[:10], whole, *others[10:]], device)
        with pytest.raises(decoding.Error, match=r"may need 21 pages \(\d+ bytes\)"):
            engine.submit(**whole | {"max_new_tokens": 73})


def test_those_that_are_out_can_be_cancelled(device: str) -> None:
    asked = [{"input_ids": ids, "num_beams": 2, **LONG} for ids in sentences(24)]
    for after in range(5):
        with swapping("gpt2-long", 30, device) as engine:
            requests = [engine.submit(**given, stream=True) for given in asked]
            while engine.stats()["swapped"] <= after and not all(r.done for r in requests):
                pass
            for request in itertools.islice(requests, 0, None, 2):
                request.cancel()
            for given, request in zip(asked, requests, strict=True):
                found = outcome(lambda: request.result(60))  # noqa: B023
                if isinstance(found, decoding.Cancelled):
                    continue
                ids = [given["input_ids"]]
                alone = ours("gpt2-long", device).generate(**given | {"input_ids": ids})
                assert_same(found, alone, device)
            assert_idle(engine)


def test_none_is_swapped_where_none_need_be() -> None:
    for overcommit, pages in ((False, 40), (True, 200)):
        with tight_engine(ours("gpt2-long"), 16, pages, overcommit=overcommit) as engine:
            requests = [engine.submit(ids, **LONG) for ids in sentences(20)]
            for request in requests:
                request.result(60)
            stats = engine.stats()
            assert stats["swaps"] == stats["swapped"] == stats["swapped_bytes"] == 0


def test_overcommit_is_true_or_false() -> None:
    wrong: Any = 2
    with pytest.raises((TypeError, ValueError), match="overcommit must be True or False"):
        decoding.Engine(ours("gpt2"), overcommit=wrong)
