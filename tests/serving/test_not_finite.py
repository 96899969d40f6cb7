"""A sentence whose numbers are not finite is an error of its own: nothing that it leaves, in pages
that others get or read with it, in rows beside theirs, changes a bit of another."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

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
from tests.support.families import FAMILIES

PAGE = 16  # tokens
COMMON = [(5 * i) % 29 + 4 for i in range(PAGE + 4)]  # the first page of several prompts
SOUND = [[*COMMON, 8, 9], [5, 6], COMMON, [11], [7, 4, 6, 9, 12, 13]]
# NaN behind a page that others share, alone, and at the end of a page.
BROKEN = [[*COMMON, SICK, 7], [SICK], [*COMMON[: PAGE - 1], SICK, 9]]
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 3, "num_return_sequences": 2},
    {"do_sample": True, "seed": 3, "num_return_sequences": 2, "top_k": 9},
]
OPTIONS: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 1}


@cache
def infinite_values(device: str) -> decoding.Model:
    """A Llama whose token SICK has values beyond float32, and nothing else that is not finite."""
    model = FAMILIES["llama"].model()
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings[:, 0] = 0  # which SICK has alone, as no block writes there
        embeddings[SICK, 0] = 10
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
        model.model.layers[0].input_layernorm.weight[0] = 2
        model.model.layers[0].self_attn.v_proj.weight[:, 0] = 3e38
    return decoding.load(model, device, "float32", threads=1)


MODELS: dict[str, Callable[[str], decoding.Model]] = {
    "gpt2": lambda device: sick("gpt2", device),
    "gpt2, int8": lambda device: sick("gpt2", device, dtype="int8"),
    "gpt2, bfloat16": lambda device: sick("gpt2", device, dtype="bfloat16"),
    "gpt2, keys bfloat16": lambda device: sick("gpt2", device, kv_cache_dtype="bfloat16"),
    # In the source alone, since its table is not the decoder's.
    "marian": lambda device: sick("marian-two-tables", device),
    "marian, int8": lambda device: sick("marian-two-tables", device, dtype="int8"),
    "llama": infinite_values,
}
names = pytest.mark.parametrize("name", MODELS)


def assert_broken(found: Any) -> str:
    assert isinstance(found, decoding.Error), found
    assert re.search(r"not finite \(NaN or infinite\) for item 0 at step \d", str(found)), found
    return str(found)


@names
def test_sound_requests_notice_nothing(name: str) -> None:
    """Behind broken ones in the same pages, beside them in the same steps, behind the same first
    page, found in the prefix cache."""
    model = MODELS[name]("cpu")
    for search in SEARCHES:
        options = OPTIONS | FULL | search | {"bad_words_ids": [[SICK]]}
        expected = [model.generate([row], **options) for row in SOUND]
        # Pages for two or three requests: they go from one to the next.
        with tight_engine(model, rows=6, pages=14) as engine:
            for row in BROKEN:
                assert_broken(outcome(engine.submit(row, **options).result))
                for sound, alone in zip(SOUND, expected, strict=True):
                    assert_same(engine.submit(sound, **options).result(60), alone)
            mixed = [row for pair in zip(SOUND, (BROKEN * 2)[:5], strict=True) for row in pair]
            requests = [engine.submit(row, **options) for row in mixed * 2]
            for i, request in enumerate(requests):
                found = outcome(lambda: request.result(60))  # noqa: B023
                if SICK in mixed[i % len(mixed)]:
                    assert_broken(found)
                else:
                    assert_same(found, expected[i % len(mixed) // 2])
            assert_idle(engine)


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_what_a_broken_text_left_is_found_by_nobody(name: str, device: str) -> None:
    model = MODELS[name](device)
    options = OPTIONS | {"bad_words_ids": [[SICK]]}
    with decoding.Engine(model) as engine:
        for _ in range(2):
            assert_broken(outcome(engine.submit(BROKEN[0], **options).result))
        assert engine.stats()["prefix_hits"] == 0
        for _ in range(2):
            engine.submit(SOUND[0], **options).result()
        assert engine.stats()["prefix_hits"] >= PAGE


@names
def test_a_call_is_as_before_behind_a_broken_one(name: str) -> None:
    """In the memory of a model's own session, where the call names the sentence."""
    model = MODELS[name]("cpu")
    for search in SEARCHES:
        options = OPTIONS | FULL | search | {"bad_words_ids": [[SICK]]}
        expected = model.generate(SOUND, **options)
        for at in (0, 2, 5):
            rows = [*SOUND[:at], BROKEN[0], *SOUND[at:]]
            with pytest.raises(decoding.Error, match=f"not finite .* item {at} at step 1"):
                model.generate(rows, **options)
            assert_same(model.generate(SOUND, **options), expected)


@pytest.mark.parametrize("name", ["gpt2", "gpt2, int8", "llama"])
def test_tokens_that_break_a_beam(name: str) -> None:
    """The prompt is sound, and a row becomes broken as it grows, in pages of its own."""
    model = MODELS[name]("cpu")
    search: dict[str, Any] = OPTIONS | FULL | {"num_beams": 3, "num_return_sequences": 3}
    sound = search | {"bad_words_ids": [[SICK]]}
    expected = [model.generate([row], **sound) for row in SOUND]
    later = []
    with tight_engine(model, rows=6, pages=14) as engine:
        for bias in (2.0, 4.0, 8.0, 60.0):
            breaking = search | {"sequence_bias": [[[SICK], bias]]}
            ends = [engine.submit(row, **breaking) for row in SOUND]
            requests = [engine.submit(row, **sound) for row in SOUND]
            for request, alone in zip(requests, expected, strict=True):
                assert_same(request.result(60), alone)
            found = [outcome(lambda: end.result(60)) for end in ends]  # noqa: B023
            later += [str(each) for each in found if isinstance(each, decoding.Error)]
    assert any(re.search(r"not finite .* at step [2-6]", each) for each in later), later
