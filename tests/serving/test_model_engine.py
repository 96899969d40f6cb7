"""generate() of more sentences than rows: an engine in which the next one takes the place of each
that has ended."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decoding
from decoding.compare.memory import ResidentMemory
from decoding.generation import batching
from decoding.serving import model_engine
from decoding.serving.planning import size
from tests.serving.engines import FULL, assert_same, outcome, sick
from tests.serving.engines import SICK as SICK_TOKEN
from tests.support.demo import DEMO
from tests.support.random_models import load, ours

ROWS = 8
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.7},
    {"num_beams": 3, "early_stopping": True, "min_new_tokens": 3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.4, "no_repeat_ngram_size": 2},
    {"do_sample": True, "seed": 7, "num_return_sequences": 2, "repetition_penalty": 1.4},
]


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setitem(batching.ROWS, device, ROWS)


def sentences(count: int, seed: int = 0, longest: int = 12) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 30, rng.integers(1, longest)).tolist() for _ in range(count)]


def by_batches(call: Any) -> Any:
    """What the sub-batches of a call give."""
    return replace(call, engine=None).run()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_all_sentences_are_as_in_sub_batches(name: str, search: dict, device: str) -> None:
    rows, model = sentences(40), ours(name, device)
    new = [1 + i % 11 for i in range(len(rows))]
    options = {"max_new_tokens": new, "pad_token_id": 1, **search, **FULL}
    if "min_new_tokens" in search:
        options["max_new_tokens"] = 11
    call = model.prepare(rows, **options)
    assert call.is_continuous
    assert_same(call.run(), by_batches(model.prepare(rows, **options)), device)


def test_prompts_of_several_lengths(device: str) -> None:
    rows, model = sentences(20), ours("marian", device)
    options = {"decoder_input_ids": sentences(20, 1, 4), "max_new_tokens": 9, "num_beams": 2}
    call = model.prepare(rows, **options, **FULL)
    assert call.is_continuous and len(call.sub_batches) > 1
    assert_same(call.run(), by_batches(model.prepare(rows, **options, **FULL)), device)


def test_what_an_engine_does_not_take_goes_by_sub_batches(device: str) -> None:
    model = ours("gpt2", device)
    beams: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 2}
    assert model.prepare(sentences(ROWS), **beams, pad_token_id=1, many=True).is_continuous
    for options in (
        {"output_scores": True, "return_dict_in_generate": True},
        {"logits_processor": [lambda ids, scores: scores]},
        {"progress": lambda done, total: None},
    ):
        call = model.prepare(sentences(ROWS), **options, **beams, pad_token_id=1, many=True)
        assert not call.is_continuous, options
    few = sentences(ROWS // 2)
    assert not model.prepare(few, **beams, pad_token_id=1).is_continuous  # they fit
    limits = decoding.Limits(batch=4, beams=2, source=0, prompt=16, target=8)
    limited = load("gpt2", device, limits=limits)
    assert not limited.prepare(sentences(30), **beams, pad_token_id=1).is_continuous


def test_memory_grows_with_the_calls(device: str) -> None:
    model = load("marian", device)
    for beams, count, longest in ((1, 20, 6), (4, 20, 6), (2, 60, 30), (1, 9, 3)):
        rows = sentences(count, beams, longest)
        options = {"num_beams": beams, "max_new_tokens": longest, **FULL}
        found = model.generate(rows, **options)
        assert_same(found, by_batches(model.prepare(rows, **options)), device)
    model.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_pages_that_no_row_comes_to_need_take_no_memory(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """The results of the demo model may have 256 tokens, and have a few. Nor do its sources stay
    behind."""
    if device != "cpu":
        pytest.skip("memory of a GPU is taken as a whole")
    monkeypatch.setitem(batching.ROWS, device, 128)
    model, memory = decoding.load(DEMO, device, dtype="float32", threads=1), ResidentMemory()
    with memory:
        model.translate([f"Guten Tag {number}!" for number in range(1000)])
    engine, limits = model._engine._engine, model._engine._planned
    assert engine is not None and limits is not None
    assert memory.growth < 0.5 * size(engine, limits)


def test_without_memory_it_goes_by_sub_batches(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    model, rows = load("marian", device), sentences(30)
    options: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 5, **FULL}
    assert not ours("marian", device).start(rows, **options).waits
    monkeypatch.setattr(model_engine, "available_memory", lambda device: 1 << 16)
    assert model.start(rows, **options).waits
    expected = by_batches(ours("marian", device).prepare(rows, **options))
    assert_same(model.generate(rows, **options), expected, device)


def test_a_call_that_waits_is_ended(device: str) -> None:
    """By who no longer wants its result; the model goes on with others."""
    call = ours("marian", device).start(sentences(2), max_new_tokens=5)
    assert call.waits
    call.cancel()
    with pytest.raises(decoding.Cancelled):
        call.result()
    assert len(ours("marian", device).generate(sentences(2), max_new_tokens=5)) == 2


@pytest.mark.parametrize("count", [2, 40])  # by sub-batches, and by the engine
def test_busy_seconds(count: int, device: str) -> None:
    model = load("marian", device)
    before, begin = model.busy_seconds, time.perf_counter()
    model.generate(sentences(count), num_beams=2, max_new_tokens=5)
    assert 0 < model.busy_seconds - before <= time.perf_counter() - begin
    model.close()


def test_a_sentence_whose_numbers_are_not_finite_is_named(device: str) -> None:
    rows = sentences(30)
    rows[17] = [5, SICK_TOKEN, 6]
    model = sick("gpt2", device)
    error = outcome(lambda: model.generate(rows, max_new_tokens=4, pad_token_id=1))
    assert isinstance(error, decoding.Error) and "item 17" in str(error)
    healthy = rows[:17]
    assert model.generate(healthy, max_new_tokens=4, pad_token_id=1).shape[0] == 17


def test_a_sentence_whose_numbers_are_not_finite_ends_the_others(device: str) -> None:
    rows = [[5, SICK_TOKEN] * 8, *sentences(39)]  # the longest is the first to be read
    model = sick("gpt2", device)
    started = model.start(rows, max_new_tokens=20, eos_token_id=None, pad_token_id=1)
    dispatcher = model._engine._dispatcher
    assert dispatcher is not None
    steps = dispatcher.stats()["steps"]
    with pytest.raises(decoding.Error, match="item 0"):
        started.result()
    assert dispatcher.stats()["steps"] - steps < 20, "not even those that ran have come to an end"


def test_cancelled_calls_leave_the_engine_to_others(device: str) -> None:
    model, rows, event = ours("marian", device), sentences(200), threading.Event()
    event.set()
    with pytest.raises(decoding.Cancelled):
        model.start(rows, num_beams=2, max_new_tokens=30, cancel=event).result()
    call = model.prepare(rows, num_beams=2, max_new_tokens=30)
    started = call.start()
    expected = by_batches(model.prepare(rows, num_beams=2, max_new_tokens=30))
    assert_same(call.form.as_tensors(started.result()), expected, device)


def test_threads_share_it(device: str) -> None:
    model, failed = ours("marian", device), list[Exception]()

    def work(seed: int) -> None:
        rows = sentences(25, seed)
        options: dict[str, Any] = {"num_beams": 1 + seed, "max_new_tokens": 8, **FULL}
        try:
            found = model.generate(rows, **options)
            assert_same(found, by_batches(model.prepare(rows, **options)), device)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_lines_are_translated_as_one_by_one(device: str) -> None:
    model = decoding.load(DEMO, device=device)
    lines = [" ".join(["ein Hund läuft"] * (1 + i % 4)) + f" {i}" for i in range(40)]
    lines[7] = ""
    found = model.translate(lines, num_beams=2, n_best=2, batch_tokens=64)
    alone = [model.translate(line, num_beams=2, n_best=2) for line in lines]
    assert [[one.text for one in own] for own in found] == [
        [one.text for one in own] for own in alone
    ]


def test_an_engine_generates_many_sentences(device: str) -> None:
    model, rows = ours("marian", device), sentences(30)
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 8, **FULL}
    with decoding.Engine(model, max_requests=9) as engine:
        assert_same(engine.generate(rows, **options), model.generate(rows, **options), device)
        with pytest.raises(decoding.Error, match="beams=10"):
            engine.generate(rows, **options | {"num_beams": 10})


def test_an_engine_that_has_failed_is_replaced(device: str) -> None:
    model, rows = load("gpt2", device, threads=1), sentences(20)
    expected = model.generate(rows, max_new_tokens=4)
    failed = model._engine._dispatcher
    failed._failure = MemoryError("there is no memory left")  # as its thread says it
    with pytest.raises(MemoryError, match="the engine failed: there is no memory left"):
        failed.check()
    assert_same(model.generate(rows, max_new_tokens=4), expected, device)
    assert model._engine._dispatcher is not failed
