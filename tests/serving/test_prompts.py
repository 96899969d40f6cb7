"""Prompts that are read in parts, and texts whose keys and values are found again."""

from __future__ import annotations

from typing import Any

import pytest

import decoding
from decoding.serving import planning
from tests.serving.engines import FULL, assert_same, tight_engine
from tests.support.random_models import ours

LONG = [(7 * i) % 50 + 3 for i in range(40)]
PROMPTS = [LONG, LONG[:33], LONG[:32] + [9, 8], LONG[:16], [4, 5], LONG]
SEARCHES = ({"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "seed": 5, "top_k": 0})


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 200])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-wide"])
def test_parts_do_not_matter(
    name: str, tokens: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tokens are read between two steps, and whatever is known already."""
    model = ours(name, device)
    monkeypatch.setitem(planning.READ, device, tokens)
    with tight_engine(model, rows=8, pages=40) as engine:
        for search in SEARCHES:
            for prompt in PROMPTS:
                options: dict[str, Any] = {"max_new_tokens": 6, **search, **FULL}
                expected = model.generate([prompt], **options)
                assert_same(engine.submit(prompt, **options).result(60), expected, device)
        stats = engine.stats()
    assert stats["prefix_hits"] > 0 and stats["pages_used"] == 0


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_what_is_found_again(name: str, device: str) -> None:
    """Full pages of a prompt, whole sources; nothing of other salts."""
    model = ours(name, device)
    text = LONG
    with tight_engine(model, rows=8, pages=40) as engine:

        def found(salt: int) -> int:
            before = engine.stats()["prefix_hits"]
            engine.submit(text, max_new_tokens=3, salt=salt).result(60)
            return engine.stats()["prefix_hits"] - before

        tokens = 40 if name == "marian" else 32  # a prompt's last token is always read
        assert [found(salt) for salt in (0, 0, 1, 0, 1)] == [0, tokens, 0, tokens, tokens]
        looked_for = 40 if name == "marian" else 39
        assert engine.stats()["prefix_queries"] == 5 * looked_for


def test_a_source_is_found_where_it_stands(device: str) -> None:
    """Masked tokens before it or within it move its tokens; those behind it do not."""
    model, text = ours("marian", device), LONG[:12]
    masks = [[1] * 12, [0] * 3 + [1] * 12, [1] * 12 + [0] * 3, [1] * 4 + [0] * 3 + [1] * 8]
    with tight_engine(model, rows=8, pages=40) as engine:
        for mask in [*masks, *masks]:
            tokens = iter(text)
            ids = [next(tokens) if real else 9 for real in mask]
            options: dict[str, Any] = {"max_new_tokens": 6, **FULL}
            expected = model.generate([ids], attention_mask=[mask], **options)
            assert_same(engine.submit(ids, mask, **options).result(60), expected, device)
        assert engine.stats()["prefix_hits"] == 3 * 12


def test_nothing_is_found_where_caching_is_off(device: str) -> None:
    with decoding.Engine(ours("gpt2", device), prefix_caching=False) as engine:
        for _ in range(2):
            engine.submit(LONG, max_new_tokens=3).result(60)
        stats = engine.stats()
        assert stats["prefix_queries"] == stats["prefix_hits"] == 0
