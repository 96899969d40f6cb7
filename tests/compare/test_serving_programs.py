"""The programs that measure serving, with an ideal engine in place of the real ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import interference, scheduling, serving
from benchmarks.online.interference import TURNS, Sizes, caching, churn, mixed, prompts
from benchmarks.online.ours import Ours
from benchmarks.report.rows import read_lines
from benchmarks.report.views import INTERFERENCE, SCHEDULING, SERVING, read_view
from decoding.compare.engines import Settings
from tests.support.random_models import ours
from tests.support.step_provider import StepProvider

SMALL = Sizes(rows=40, source=3, new=8, vocabulary=30, prompt=20, every=0.05, seconds=0.2)


def test_an_ideal_engine_loses_nothing() -> None:
    with StepProvider(rows=20) as provider:
        [pair] = churn(provider, Sizes(rows=20, source=3, new=20, vocabulary=30))
        assert 0.5 < pair.beside / pair.alone < 2
    with StepProvider(step=0.003) as provider:
        pairs = mixed(provider, SMALL)
        assert [pair.case for pair in pairs][-1] == "beams 8 in 40 rows"
        assert all(0.4 < pair.beside / pair.alone < 2.5 for pair in pairs)
        assert all(pair.beside > 0 for pair in prompts(provider, SMALL))


def test_each_search_needs_a_row() -> None:
    with pytest.raises(ValueError, match="need 40 rows together, got 39"):
        mixed(StepProvider(), Sizes(rows=39, source=3, new=8, vocabulary=30))


def test_a_prefix_cache_that_finds_nothing() -> None:
    sizes = Sizes(rows=4, source=17, new=6, vocabulary=55)
    provider = Ours(SimpleNamespace(model=ours("gpt2"), task=None), "cpu", sizes.rows)
    [pair] = caching(provider, sizes)
    assert min(pair.alone, pair.beside) > 0
    stats = provider.server.stats()
    assert (stats["prefix_queries"], stats["prefix_hits"]) == (TURNS * 8 * 16, 0)
    with pytest.raises(RuntimeError, match="began like another one"):
        caching(provider, replace(sizes, vocabulary=4))  # of one token
    provider.close()
    with pytest.raises(ValueError, match="caching measures our engine, not steps"):
        caching(StepProvider(), sizes)


class Here:
    """A Host without a process."""

    version = "steps 1"

    def __init__(self, name: str, model: Path, settings: Settings, rows: int | None) -> None:
        self.provider = StepProvider(rows)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        self.provider.close()

    def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        return function(self.provider, *arguments)


def saved(model: str, directory: Path) -> Path:
    return directory


def test_serving_writes_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "Host", Here)
    monkeypatch.setattr(serving, "save", saved)
    monkeypatch.setattr(serving, "SWEEP", (0.1, 0.2))
    output = tmp_path / "serving-cpu.csv"
    given = "--workloads gpt2-short --providers huggingface ours --requests 4 --seconds 0.2"
    assert serving.main([*given.split(), "--output", str(output)]) == 0
    rows = read_lines(output)
    assert [row["provider"] for row in rows] == ["huggingface"] * 3 + ["ours"] * 3
    assert [row["rate"] for row in rows][::3] == ["inf", "inf"]
    assert float(rows[1]["rate"]) == pytest.approx(0.1 * float(rows[0]["served"]), rel=1e-3)
    assert list(rows[0])[:2] == ["workload", "provider"] and rows[0]["date"]
    [found] = read_view(SERVING, tmp_path)
    assert found.table.rows[0][0].startswith("gpt2-short float32, inf/s, transformers")
    said = capsys.readouterr().out
    assert "gpt2-short float32, ours all at once" in said
    assert "gpt2-short: ours has " in said and "times the goodput of huggingface" in said


def test_servers_are_compared_with_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "Host", Here)
    monkeypatch.setattr(serving, "save", saved)
    given = "--workloads gpt2-words --providers ours ours-http huggingface-http --rates all"
    assert serving.main([*given.split(), "--requests", "2", "--seconds", "0.1"]) == 0
    said = capsys.readouterr().out
    assert re.search("gpt2-words: ours has .* goodput of ours-http", said)
    assert re.search("gpt2-words: ours-http has .* goodput of huggingface-http", said)
    assert re.search("ms ours-http serves .* times huggingface-http's", said)


def test_serving_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Here):
        def __init__(self, name: str, *given: Any) -> None:
            if name == "ctranslate2":
                raise OSError("no such library")
            super().__init__(name, *given)

    monkeypatch.setattr(serving, "Host", Broken)
    monkeypatch.setattr(serving, "save", saved)
    given = "--workloads marian-base-4 --requests 3 --seconds 0.1 --rates all 50"
    assert serving.main(given.split()) == 1
    said = capsys.readouterr()
    assert "marian-base-4 ctranslate2: OSError: no such library" in said.err
    assert "huggingface: not in float32 on cpu, or not this search" in said.out
    assert said.out.count("ours-static at 50.0/s") == 2  # its row, and in the table


def test_interference_writes_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference, "Host", Here)
    monkeypatch.setattr(interference, "save", saved)
    given = "--rows 40 --new 40 --seconds 0.2 --every 0.05 --prompt 9 --source 2 --repeats 1"
    given += " --measure churn mixed prompts"  # caching measures our engine alone
    interference.main([*given.split(), "--output", str(tmp_path / "interference-cpu.csv")])
    rows = read_lines(tmp_path / "interference-cpu.csv")
    assert [row["measure"] for row in rows] == ["churn"] + ["mixed"] * 5 + ["prompts"] * 3
    for row in rows:
        assert float(row["ratio"]) == pytest.approx(
            float(row["beside"]) / float(row["alone"]), 0.01
        )
    [found] = read_view(INTERFERENCE, tmp_path)
    assert len(found.table.rows) == len(rows)


def test_scheduling_writes_its_rows(tmp_path: Path) -> None:
    given = ["--rows", "2", "5", "--steps", "20", "--calls", "20", "--repeats", "2"]
    scheduling.main([*given, "--output", str(tmp_path / "scheduling-cpu.csv")])
    rows = read_lines(tmp_path / "scheduling-cpu.csv")
    assert [row["what"] for row in rows[8:]] == [
        "submit() of a tensor",
        "submit() of a list",
        "submit() of an array",
        "result()",
        "submit() with new options",
    ]
    assert len(rows) == 13 and all(0 < float(row["p50"]) <= float(row["p99"]) for row in rows)
    [found] = read_view(SCHEDULING, tmp_path)
    assert len(found.table.rows) == len(rows)
