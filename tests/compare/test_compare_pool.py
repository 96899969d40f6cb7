"""Engines in processes of their own: one that fails is a row that says why, the others go on."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.compare import comparison
from decoding.compare.comparison import Plan, compare
from decoding.compare.engine_pool import EnginePool
from decoding.compare.engines import ENGINES, Engine, EngineConfig, Settings
from decoding.compare.results import Ceilings, Comparison, Machine, Run
from decoding.compare.runs import Batch, Point, measure
from decoding.compare.service import serve
from decoding.compare.task import Task
from decoding.compare.text import Text
from decoding.compare.worker import ResourceLimits, died
from decoding.generation.config import GenerationConfig
from tests.compare.specs import TRANSFORMER_BASE
from tests.support import stub_engines
from tests.support.demo import DEMO

CEILINGS = {"float32": Ceilings(bandwidth=1e9, flops=1e9)}
BATCH = Batch([[1, 2], [3, 4, 5]], [2, 3])


def task(directory: Path) -> Task:
    return Task(directory, TRANSFORMER_BASE, {}, GenerationConfig(eos_token_id=[0]))


def configs(*engines: type[Engine]) -> list[EngineConfig]:
    return [EngineConfig(engine, Settings("cpu", "float32", 1)) for engine in engines]


def runs(pool: EnginePool, beams: int = 1) -> dict[str, Run]:
    point = Point(batch=2, beams=beams, length=4)
    return {run.engine: run for run in measure(pool, point, BATCH, CEILINGS, rounds=2)[0]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes begin as copies of one that has imported torch, in no time."""
    monkeypatch.setattr("decoding.compare.worker.START", "forkserver")
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.support.stub_engines"])
    monkeypatch.setattr("decoding.compare.runs.PAUSE", 0.0)


def test_a_process_ends_in_order_where_nobody_waits_for_its_answer(tmp_path: Path) -> None:
    """As after Ctrl-C: a traceback would follow what the command has said."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    given = theirs, stub_engines.Echo, task(tmp_path), Settings("cpu", "float32", 1), False
    process = context.Process(target=serve, args=given)
    ours.close()  # before it starts, so that its first answer finds nobody
    process.start()
    theirs.close()
    process.join()
    assert process.exitcode == 0


def test_who_fails_has_a_reason_and_the_others_have_times(tmp_path: Path) -> None:
    stubs = stub_engines
    engines = (stubs.Echo, stubs.Raises, stubs.Dies, stubs.Hangs, stubs.Eats, stubs.Stops)
    limits = ResourceLimits(memory=0.6e9, seconds=4)
    with EnginePool(task(tmp_path), configs(*engines), limits) as pool:
        found = runs(pool)
    assert {name: run.error for name, run in found.items()} == {
        "echo": "",
        "raises": "ValueError: no such thing",
        "dies": "died with exit code 3",
        "hangs": "out of time after 4 s",
        "eats": "out of memory limit 0.6 GB",
        "stops": "generated [1] tokens, not 4",
    }
    echo = found["echo"]
    assert (echo.version, echo.batch, echo.length, echo.source) == ("echo 1", 2, 4, 5)
    assert 0 < echo.p20 <= echo.p50 <= echo.p80 and echo.first_token > 0
    assert echo.rate == pytest.approx(2 / (echo.p50 / 1e3))
    assert echo.memory >= 0 and math.isnan(found["dies"].p50)
    assert (
        found["dies"].roofline_bound == echo.roofline_bound > 0
    )  # what is known of the machine is known


def test_what_cannot_be_loaded_is_not_tried_again(tmp_path: Path) -> None:
    stubs = stub_engines
    engines = configs(stubs.CannotLoad, stubs.CannotConvert, stubs.Converts)
    with EnginePool(task(tmp_path), engines, ResourceLimits()) as pool:
        for _ in range(2):
            found = runs(pool)
            assert found["cannot-load"].error == "OSError: no weights"
            assert found["cannot-convert"].error == "NotImplementedError: no such model"
            assert found["converts"].version == "converted to float32"
    assert (tmp_path / "loads").read_text() == "x"
    assert "Traceback" in str(pool.failures[0])


def test_an_exit_code_in_words() -> None:
    assert died(1) == "died with exit code 1"
    assert died(-11) == "died of SIGSEGV"
    assert died(-9) == "died of SIGKILL (was there too little memory?)"


def plan(**changes: object) -> Plan:
    lines = ["Das ist ein Haus.", "Ja."]
    tokenizer = Task.read(DEMO).load_tokenizer()
    text = Text("lines.txt", lines, [tokenizer.encode(line) for line in lines], [], [1, 2])
    made = Plan(
        name="demo",
        task=Task.read(DEMO),
        text=text,
        engines=[stub_engines.Echo, stub_engines.Raises],
        batch=[1, 3],
        beams=[4],
        lengths=[2],
        dtypes=["float32", "int8"],
        devices=["cpu"],
        threads=1,
        tokenisation="in",
        rounds=1,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_whole_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("a machine", "", 1, "", "", CEILINGS)
    monkeypatch.setattr(comparison, "machine_of", lambda *_: machine)
    found: list[Comparison] = list(compare(plan()))
    assert len(found) == plan().findings == 1 + 1 + 2 + 1
    assert [each.finished for each in found] == [False] * 4 + [True]
    whole = found[-1]
    assert whole.machines == {"cpu": machine} and whole.tokenisation == "in"
    echo, raises = whole.checks
    assert (echo.engine, echo.reference, echo.sentences) == ("echo", "echo float32 cpu", 2)
    assert (echo.identical, echo.largest, echo.mean) == (2, 0.0, 0.0)
    assert raises.error == "ValueError: no such thing" and raises.sentences == 0
    assert [(run.engine, run.batch, run.error != "") for run in whole.runs] == [
        ("echo", 1, False),
        ("raises", 1, True),
        ("echo", 3, False),
        ("raises", 3, True),
    ]
    first, second = (len(ids) for ids in plan().text.ids)
    assert whole.runs[2].source == 2 * first + second  # the text's lines over again
    assert Comparison.from_json(whole.to_json()).to_json() == whole.to_json()


def test_the_reference_comes_first() -> None:
    given = plan(engines=list(ENGINES.values())[::-1], dtypes=["int8", "float32"])
    groups = given.configs("cpu")
    assert [str(config) for config in groups[0][:1]] == ["huggingface float32 cpu"]
    assert [len(group) for group in groups] == [5, 3]
