"""How long requests may be in the memory that there is, and how many pages they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

import decoding
from decoding import _C
from decoding.common.device import CPU, Device
from decoding.engine.limits import EngineLimits
from decoding.models.spec import ModelSpec
from decoding.serving import planning
from decoding.serving.planning import engine_limits
from tests.support.random_models import ours


class Costs:
    """An engine whose tables and pages cost what it is told."""

    def __init__(self, table: int = 8, page: int = 1000, fixed: int = 5000) -> None:
        self.table, self.page, self.fixed = table, page, fixed

    def plan(self, limits: Any) -> tuple[list[Any], int]:
        tables = limits.requests * (limits.source + limits.prompt + limits.target) * self.table
        return [], self.fixed + tables + self.page * limits.pages


@pytest.fixture(autouse=True)
def plain_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled limits cannot be looked into."""
    monkeypatch.setattr(planning, "compiled", lambda limits: limits)
    monkeypatch.setattr(planning, "available_memory", lambda device: 8 << 30)


def planned(
    costs: Costs, memory: int | None, rows: int | None = None, device: Device = CPU
) -> EngineLimits:
    stack = replace(ours("marian").spec.decoder, positions=512)
    spec = ModelSpec(encoder=stack, decoder=stack)
    return engine_limits(cast(_C.Engine, costs), spec, device, memory, rows)


def test_the_memory_that_is_given_is_used_and_not_exceeded() -> None:
    costs = Costs()
    for memory in (300_000, 1_000_000, 123_456_789):
        limits = planned(costs, memory, 4)
        size = costs.plan(limits)[1]
        assert memory - 2 * costs.page < size <= memory
        assert limits.requests == 4 and limits.target == 512


def test_requests_are_shorter_where_memory_is_short() -> None:
    limits = planned(Costs(table=10), memory=200_000, rows=8)
    assert (limits.source, limits.prompt, limits.target) == (128, 128, 128)
    shortest = planned(Costs(table=10), memory=60_000, rows=8)
    assert shortest.target == 64 and shortest.pages == (60_000 - 5000 - 8 * 3 * 64 * 10) // 1000


def test_as_many_rows_as_are_wanted() -> None:
    assert planned(Costs(), None).requests == 64
    limits = planned(Costs(), None, rows=2)
    assert limits.requests == limits.beams == 2
    assert limits.candidates == 18
    assert planned(Costs(), None, rows=500).beams == 64


@pytest.mark.parametrize(
    ("memory", "rows", "expected"),
    [
        (80_000_000, None, (1024, 512)),
        (40_000_000, None, (512, 512)),
        (10_000_000, None, (256, 256)),
        (40_000_000, 1024, (1024, 256)),
    ],
)
def test_fewer_rows_before_shorter_requests(
    memory: int, rows: int | None, expected: tuple[int, int]
) -> None:
    limits = planned(Costs(table=10), memory, rows, Device("cuda", 0))
    assert (limits.requests, limits.target) == expected


def test_without_a_number_a_cpu_has_pages_for_usual_lengths() -> None:
    assert planned(Costs(), None, rows=64).pages == 64 * (2 * 256 // 16 + 1)
    assert planned(Costs(), None, rows=1).pages == 2 * 512 // 16 + 1, "the longest request fits"


def test_too_little_for_one_sentence() -> None:
    words = r"an engine of 64 rows needs \d+ bytes .* on cpu to write 64 tokens for one sentence"
    with pytest.raises(decoding.Error, match=words):
        planned(Costs(), memory=100_000)
    assert planned(Costs(table=0), memory=17_000).pages == 12
    assert planned(Costs(table=0), memory=14_000).pages == 9
    with pytest.raises(decoding.Error, match="needs 14000 bytes"):
        planned(Costs(table=0), memory=13_999)


def test_limits_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for memory in (3_000_000, 30_000_000):
        with decoding.Engine(ours("marian"), memory=memory, max_requests=8) as engine:
            plan = engine.memory_plan()
            assert plan.bytes <= memory and plan.weights == ours("marian").weight_bytes
            assert "requests 8" in str(plan) and "8 rows" in repr(engine)
            assert engine.stats()["pages_total"] == plan.limits.pages  # type: ignore[union-attr]
    with pytest.raises(decoding.Error, match="raise memory, or lower max_requests"):
        decoding.Engine(ours("marian"), memory=1000)


@pytest.mark.parametrize("name", ["memory", "max_requests"])
def test_what_is_no_size(name: str) -> None:
    wrong: dict[Any, type[Exception]] = {0: ValueError, 1.5: ValueError, "8": TypeError}
    for value, error in wrong.items():
        with pytest.raises(error, match=name):
            decoding.Engine(ours("gpt2"), **{name: value})
