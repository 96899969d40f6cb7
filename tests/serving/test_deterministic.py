"""An engine of a deterministic model gives the same bits whoever shares its steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import decoding
from tests.serving.engines import FULL, assert_same
from tests.support.random_models import load

pytestmark = pytest.mark.gpu

SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "num_return_sequences": 2},
    {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    {"do_sample": True, "seed": 5},
    {"do_sample": True, "seed": 6, "num_return_sequences": 3, "top_p": 0.8, "top_k": 0},
]


def texts(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 60, (count,), generator=generator).tolist()
    return [torch.randint(12, 2000, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["marian-large", "gpt2-large"])
def test_a_request_does_not_depend_on_its_neighbours(name: str, dtype: str) -> None:
    model = load(name, "cuda", dtype=dtype, deterministic=True)
    asked = [(ids, SEARCHES[i % len(SEARCHES)]) for i, ids in enumerate(texts(10, seed=1))]
    others = texts(80, seed=2)
    with decoding.Engine(model, memory=1 << 30, prefix_caching=False) as engine:

        def submit(ids: list[int], options: dict[str, Any]) -> Any:
            return engine.submit(ids, max_new_tokens=20, **FULL, **options)

        alone = [submit(*each).result() for each in asked]
        neighbours = [submit(ids, SEARCHES[i % 4]) for i, ids in enumerate(others)]
        among = [submit(*each) for each in asked]
        for found, expected in zip(among, alone, strict=True):
            assert_same(found.result(), expected)
        for neighbour in neighbours:
            neighbour.result()
    for (ids, options), expected in zip(asked, alone, strict=True):
        assert_same(model.generate([ids], max_new_tokens=20, **FULL, **options), expected)


def test_what_the_prefix_cache_finds_has_the_same_bits() -> None:
    model = load("gpt2-large", "cuda", dtype="float16", deterministic=True)
    (prompt,) = [ids * 60 for ids in texts(1, seed=3)]
    prompt, options = prompt[:60], {"max_new_tokens": 20, **FULL}
    with decoding.Engine(model, memory=1 << 30) as engine:
        first, again = (engine.submit(prompt, **options).result() for _ in range(2))
        assert engine.stats()["prefix_hits"] > 0
        assert_same(again, first)
