"""The plan of memory: sound, readable, growing with calls, within limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

import decoding
from decoding import Limits
from decoding.engine import pool
from decoding.engine.limits import next_bucket
from decoding.models.weights.dtypes import as_tensor
from decoding.serving import model_engine
from tests.support.random_models import load, ours
from tests.support.sessions import LIMITS, run, same, tokens


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_the_plan_is_sound(name: str, device: str) -> None:
    plan = ours(name, device).memory_plan(LIMITS)
    names = [buffer.name for buffer in plan.buffers]
    assert len(set(names)) == len(names)
    assert {"k_pages", "v_pages", "logits", "tokens", "parents"} <= set(names)
    assert all(buffer.offset % 256 == 0 for buffer in plan.buffers)
    assert max(buffer.offset + buffer.bytes for buffer in plan.buffers) <= plan.bytes
    sharing = 0
    for a, b in combinations(plan.buffers, 2):
        if max(a.offset, b.offset) < min(a.offset + a.bytes, b.offset + b.bytes):
            common = min(len(a.lifetime), len(b.lifetime))
            assert list(a.lifetime[:common]) != list(b.lifetime[:common]), (a.name, b.name)
            assert b.name in plan.sharing(a) and a.name in plan.sharing(b)
            sharing += 1
    assert sharing > 0, "the encoder's scratch and the steps' share bytes"


def test_the_plan_is_readable() -> None:
    model = ours("marian")
    plan = model.memory_plan(LIMITS)
    lines = plan.table().splitlines()
    assert lines[0].split()[:6] == ["name", "type", "shape", "offset", "bytes", "lifetime"]
    assert len(lines) == len(plan.buffers) + 2
    assert lines[-1].startswith(f"total {plan.bytes} bytes") and plan.summary in lines[-1]
    for buffer, line in zip(plan.buffers, lines[1:], strict=False):
        assert line.startswith(buffer.name) and str(buffer.bytes) in line
    assert "batch 2, beams 3, source 6, prompt 2, target 8" in plan.summary


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_parts_of_the_plan(name: str) -> None:
    """Each has the bytes of its buffers, and no more are counted twice than two parts share."""
    model = ours(name)
    plan = model.memory_plan(LIMITS)
    parts, size = plan.parts(), {buffer.name: buffer.bytes for buffer in plan.buffers}
    assert parts["weights"] == model.weight_bytes > 0
    assert parts["keys and values"] == size["k_pages"] + size["v_pages"]
    assert parts["encoder and prompt"] >= size["encoder.x" if name == "marian" else "prompt.x"]
    assert parts["step"] > size["logits"] + size["step.x"]
    block = sum(parts.values()) - parts["weights"]
    assert block - min(parts["step"], parts["encoder and prompt"]) <= plan.bytes
    assert plan.bytes - 256 * len(plan.buffers) <= block  # but for the gaps between buffers
    lines = str(plan).splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == list(parts) and len(lines) == 5
    assert lines[-1].startswith("total ") and "for batch 2, beams 3" in lines[-1]
    assert f"{(plan.bytes + plan.weights) / 1e6:.3f} MB" in lines[-1]


def test_lengths_beyond_the_positions_are_refused() -> None:
    model = ours("marian")
    most = model.spec.decoder.positions
    assert model.memory_plan(replace(LIMITS, target=most)).bytes
    for name in ("source", "prompt", "target", "labels"):
        with pytest.raises(ValueError, match=f"{name}={most + 1} is beyond .* {most} positions"):
            model.memory_plan(replace(LIMITS, **{name: most + 1}))


def test_a_plan_grows_with_its_limits_and_needs_no_call_before() -> None:
    model = load("gpt2", threads=1)
    assert model.memory_plan().bytes > 0
    size = model.memory_plan(LIMITS).bytes
    for name in ("batch", "beams", "prompt", "target", "eos"):
        assert model.memory_plan(replace(LIMITS, **{name: 19})).bytes > size, name


@pytest.mark.parametrize(
    "size, expected", [(0, 0), (1, 1), (3, 3), (5, 6), (7, 8), (9, 12), (25, 32)]
)
def test_buckets(size: int, expected: int) -> None:
    assert next_bucket(size) == expected == next_bucket(expected)


def test_the_pool_grows_on_demand_and_never_shrinks(device: str) -> None:
    model = load("marian", device, threads=1)
    small = run(model, tokens())
    first = model.memory_plan()
    assert first.limits == Limits(batch=2, beams=3, source=4, target=8, eos=1)
    big = run(model, tokens(7, 9), max_new_tokens=30, num_beams=5)
    pool = as_tensor(model._session._pool)
    assert len(pool) == model.memory_plan().bytes > first.bytes
    assert pool.data_ptr() % 256 == 0
    assert same(run(model, tokens()), small, device)
    assert same(run(model, tokens(7, 9), max_new_tokens=30, num_beams=5), big, device)
    assert as_tensor(model._session._pool).data_ptr() == pool.data_ptr()


def test_calls_of_alternating_shapes_share_a_plan(device: str) -> None:
    model = load("gpt2", device, threads=1)
    shapes = [(1, 9, 3), (6, 2, 2), (2, 4, 5)]  # batch, width, beams
    found = [run(model, tokens(b, w), num_beams=k) for b, w, k in shapes]
    bound, plan = model._session._bound, model.memory_plan()
    assert plan.limits == Limits(batch=6, beams=5, prompt=12, target=8, eos=1)
    for _ in range(2):
        again = [run(model, tokens(b, w), num_beams=k) for b, w, k in shapes]
        assert all(same(a, b, device) for a, b in zip(found, again, strict=True))
        assert model._session._bound is bound


def test_calls_that_have_little_in_common_do_not_share_a_plan() -> None:
    model = load("gpt2", threads=1)
    run(model, tokens(1, 2), max_new_tokens=46, num_beams=12)
    run(model, tokens(60, 2), max_new_tokens=2, num_beams=2)
    assert model.memory_plan().limits == Limits(batch=64, beams=2, prompt=2, target=2, eos=1)


def test_explicit_limits_are_planned_once_and_hold(device: str) -> None:
    model = load("marian", device, limits=LIMITS, threads=1)
    plan, pool = model.memory_plan(), as_tensor(model._session._pool)
    assert plan.limits == LIMITS and len(pool) == plan.bytes
    free = ours("marian", device)
    assert same(run(model, tokens(2, 6)), run(free, tokens(2, 6)), device)
    # a larger batch is split
    assert same(run(model, tokens(5, 6)), run(free, tokens(5, 6)), device)
    assert model.memory_plan().bytes == plan.bytes
    assert as_tensor(model._session._pool).data_ptr() == pool.data_ptr()


@pytest.mark.parametrize(
    "name, asked, options",
    [
        ("beams", 4, {"num_beams": 4}),
        ("beams", 5, {"num_beams": 1, "do_sample": True, "num_return_sequences": 5}),
        ("source", 7, {"ids": tokens(2, 7)}),
        ("target", 9, {"max_new_tokens": 9}),
        ("prompt", 3, {"decoder_input_ids": [[59, 1, 2]] * 2}),
        ("eos", 5, {"eos_token_id": [1, 2, 3, 4, 5]}),
    ],
)
def test_beyond_explicit_limits(
    name: str, asked: int, options: dict[str, Any], device: str
) -> None:
    model = load("marian", device, limits=LIMITS, threads=1)
    before = run(model, tokens())
    options = dict(options)
    ids = options.pop("ids", tokens())
    needed = model.memory_plan(replace(LIMITS, **{name: asked})).bytes
    limit = getattr(LIMITS, name)
    with pytest.raises(ValueError, match=f"{name}={asked}.*{name}={limit}.*{needed} bytes"):
        run(model, ids, **options)
    assert same(run(model, tokens()), before, device)


@pytest.mark.parametrize("name", ["batch", "beams", "source", "prompt", "target", "eos"])
def test_limits_have_a_least_size(name: str) -> None:
    with pytest.raises(ValueError, match=f"Limits.{name} must be at least"):
        replace(LIMITS, **{name: -1})


def test_limits_are_limits() -> None:
    with pytest.raises(TypeError, match=r"limits must be decoding.Limits\(...\), got int"):
        load("marian").memory_plan(3)
    with pytest.raises(TypeError, match="limits must be decoding.Limits"):
        load("marian", limits=3)
    with pytest.raises(ValueError, match="target=999999 is beyond the model's"):
        load("marian", limits=replace(LIMITS, target=999999))


def test_memory_that_is_not_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("gpt2", device, threads=1)
    before = run(model, tokens())
    with monkeypatch.context() as patch:
        for module in (pool, model_engine):
            patch.setattr(module, "available_memory", lambda _: 200_000)
        words = r"needs \d+ bytes .*available: 200000 bytes .*lower (batch|beams|target)"
        with pytest.raises(decoding.Error, match=words):
            run(model, tokens(40, 20), max_new_tokens=20, num_beams=6)
        assert same(run(model, tokens()), before, device)
        with pytest.raises(decoding.Error, match=words):
            load("gpt2", device, limits=replace(LIMITS, batch=5000))
    huge = replace(LIMITS, batch=10**6, beams=64)
    with pytest.raises(decoding.Error, match="lower (batch|beams|target)"):
        load("gpt2", device, limits=huge)
    assert same(run(model, tokens()), before, device)


def test_a_bucket_that_does_not_fit_gives_way_to_the_exact_size(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("gpt2", device, threads=1)
    exact = Limits(batch=5, beams=3, prompt=5, target=9, eos=1)
    available = model.memory_plan(exact).bytes
    assert available < model.memory_plan(replace(exact, batch=6, prompt=6, target=12)).bytes
    monkeypatch.setattr(pool, "available_memory", lambda _: available)
    run(model, tokens(5, 5), max_new_tokens=9)
    assert model.memory_plan().limits == exact
