"""150 damaged models, and that the fuzzer of files sees what it looks for."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.case import judge, why_unclear
from tests.fuzz.files import fuzz
from tests.fuzz.sandbox import Tree, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
CASES = 150
NAMES = {"config.json", "hidden_size"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_damaged_models_are_refused_or_load() -> None:
    """Longer runs: python -m tests.fuzz.files --cases 200000."""
    summary = fuzz(seed=0, first=0, cases=CASES, processes=1)  # each first uses all models
    assert not summary.bad, summary.table()
    counts = summary.total()
    assert counts["loads"] > CASES / 20 and counts["refused"] > CASES / 4, "too tame or too wild"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with those of a case, of which one file is read."""
    for name in ("in", "outside", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "out/config.json").unlink()
    yield tmp_path
    shutil.rmtree(tmp_path)


def verdict(place: Path, function: Callable[[], Any], size: int = 1000) -> str:
    """Of a function that does something bad in a child, or nothing."""

    def call() -> dict[str, Any]:
        function()
        return {}

    trees = [Tree(place / "in"), Tree(place / "outside", watch_reads=True)]
    ended = run(call, [place / "in"], [place / "out"])
    return judge(ended, NAMES, size, trees, place / "out", []).kind


def test_what_is_allowed_is_no_verdict(place: Path) -> None:
    def use() -> None:
        (place / "in/config.json").read_text()
        (place / "out/model.part").mkdir()
        (place / "out/model.part/config.json").write_text("{}")
        (place / "out/model.part").rename(place / "out/model")

    assert verdict(place, use) == "loads"


def test_escapes_are_seen(place: Path) -> None:
    outside = place / "outside/config.json"
    assert verdict(place, lambda: outside.read_text()) == "escape"
    assert verdict(place, lambda: os.system(f"cat {outside} > /dev/null")) == "escape"
    assert verdict(place, lambda: (place / "in/new").write_text("")) == "escape"
    assert verdict(place, lambda: (place / "in/config.json").unlink()) == "escape"
    assert verdict(place, lambda: (place / "other").write_text("")) == "escape"
    assert verdict(place, lambda: os.rename(outside, place / "out/model")) == "escape"
    assert verdict(place, lambda: (place / "out/left").write_text("")) == "escape"


def test_reads_that_python_does_not_see_are_seen(place: Path) -> None:
    """A library in C opens files without telling Python."""
    tree = Tree(place / "outside", watch_reads=True)
    pid = os.fork()
    if pid == 0:
        os.execvp("cat", ["cat", str(place / "outside/config.json")])
    os.waitpid(pid, 0)
    assert tree.changes() == [str(place / "outside/config.json")]


def test_crashes_hangs_and_memory_are_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.sandbox.SECONDS", 1)
    monkeypatch.setattr("tests.fuzz.sandbox.WAIT", 3)
    assert verdict(place, lambda: os.kill(os.getpid(), 9)) == "crash"
    assert verdict(place, lambda: time.sleep(60)) == "hang"
    assert verdict(place, lambda: sum(iter(int, 1))) == "hang"
    assert verdict(place, lambda: b"x" * (200 << 20)) == "memory"
    assert verdict(place, lambda: b"x" * (200 << 20), 100 << 20) == "loads"


@pytest.mark.parametrize(
    ("kind", "message", "clear"),
    [
        ("ModelFileError", "/a/config.json is not valid JSON", True),
        ("ValueError", "hidden_size must be positive", True),
        ("ValueError", "decoder.layers.0.up.weight is missing", True),
        ("ValueError", "invalid literal for int()", False),
        ("KeyError", "'hidden_size'", False),
        ("UnicodeDecodeError", "config.json: invalid start byte", False),
        ("TypeError", "hidden_size must be an integer", False),
        ("ValueError", "config.json holds " + "x" * 5000, False),
    ],
)
def test_what_a_clear_message_is(kind: str, message: str, clear: bool) -> None:
    assert (not why_unclear("load", kind, message, NAMES)) == clear


def test_a_child_that_answers_nothing_has_crashed(place: Path) -> None:
    assert verdict(place, lambda: os._exit(3)) == "crash"
