"""Outputs in directories that are mount points, and merges that end in their middle."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import decoding
from decoding.corpus import run
from tests.corpus.tasks import Capitals

ROOT = Path(decoding.__file__).parent.parent
MEMORY_DISK = Path("/dev/shm")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to which no file of another one can be renamed."""
    is_disk = os.access(MEMORY_DISK, os.W_OK)
    if is_disk and MEMORY_DISK.stat().st_dev != tmp_path.stat().st_dev:
        with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name:
            yield Path(name)
        return
    replace = os.replace

    def within(before: Path, after: Path) -> None:
        if before.parent != after.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), before)
        replace(before, after)

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("decoding.corpus.merge.os.replace", within)
    yield tmp_path / "elsewhere"


def test_outputs_may_be_on_another_file_system(tmp_path: Path, elsewhere: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    (tmp_path / "out").symlink_to(elsewhere)
    done = run(Capitals(), [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out")
    assert done.rows == 2 and done.folder == tmp_path / "out.job"
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {
        "a.txt": "A\n",
        "b.txt": "B\n",
    }


def test_who_is_killed_while_merging_leaves_nothing_for_long(tmp_path: Path) -> None:
    """A file that no pattern of outputs matches, and that the next run replaces."""
    (tmp_path / "in.txt").write_text("a\nb\n")
    (tmp_path / "out").mkdir()
    given = f"[{str(tmp_path / 'in.txt')!r}], {str(tmp_path / 'out')!r}"
    code = (
        "import os, signal; from decoding.corpus import merge, run;"
        "from tests.corpus.tasks import Capitals;"
        "merge.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL);"
        f"run(Capitals(), {given})"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert os.listdir(tmp_path / "out") == [".in.txt.job.tmp"]
    (tmp_path / "out/.in.txt.job.tmp").write_text("longer than the output")
    done = run(Capitals(), [tmp_path / "in.txt"], tmp_path / "out", resume=True)
    assert (done.rows, done.computed) == (2, 0)
    assert os.listdir(tmp_path / "out") == ["in.txt"]
    assert (tmp_path / "out/in.txt").read_text() == "A\nB\n"
