"""`decoding COMMAND --tensor-parallel N`: ranks write what one process does, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decoding.cli.ranks.launch import Ranks
from tests.cli.program import Program, one_line

GERMAN = ["Guten Tag!", "", "Das ist ein Haus.", "Wie geht es Ihnen heute?"]
MANY = "\n".join(GERMAN * 5000)
SPLIT = ("--device", "cpu", "--threads", "1", "--tensor-parallel", "2", "--quiet")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Program:
    return Program(monkeypatch, capsysbinary)


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "decoding", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def under_way() -> tuple[subprocess.Popen[bytes], list[int]]:
    """A long translation that has begun to write, and its ranks."""
    process = start("translate", "--model", "models/demo", *SPLIT)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(MANY.encode())
    process.stdin.close()
    assert process.stdout.read(1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return process, [int(child) for child in children.split()]


def end(process: subprocess.Popen[bytes]) -> str:
    """What it says on standard error."""
    process.stdin = None  # it is closed
    return process.communicate(timeout=60)[1].decode()


def test_ranks_write_what_one_process_does(program: Program, tmp_path: Path) -> None:
    words = ("translate", "--model", "models/demo", "--device", "cpu", "--quiet", "--scores")
    whole = program(*words, source="\n".join(GERMAN))
    output = tmp_path / "english.txt"
    split = start(*words, "--threads", "1", "--tensor-parallel", "2", "--output", str(output))
    out, err = split.communicate("\n".join(GERMAN).encode(), timeout=60)
    assert (split.returncode, out, err) == (0, b"", b"")
    assert texts(output.read_text()) == texts(whole.out)


def texts(lines: str) -> list[str]:
    """Without the scores, whose last digits differ."""
    return [line.partition(" ||| ")[0] for line in lines.splitlines()]


def test_a_rank_that_is_killed_ends_the_command() -> None:
    process, ranks = under_way()
    os.kill(ranks[1], signal.SIGKILL)
    said = end(process)
    assert process.returncode == 128 + signal.SIGKILL
    assert "rank 1 of 2" in said and "SIGKILL has ended rank 1" in said
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def test_ctrl_c_ends_all_ranks_without_a_word() -> None:
    process, ranks = under_way()
    process.send_signal(signal.SIGINT)
    assert (end(process), process.returncode) == ("", 130)
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def test_ctrl_c_while_ranks_start_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also none that has started, and that nobody knew of yet."""
    started, popen = [], subprocess.Popen

    def interrupted(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open(os.devnull, "rb") as file, pytest.raises(KeyboardInterrupt), Ranks(2) as ranks:
            ranks.start([], [file, file], [None, None])
    finally:
        signal.signal(signal.SIGINT, before)
    assert [process.poll() for process in started] == [-signal.SIGKILL]


def test_what_is_wrong_is_said_once(program: Program, tmp_path: Path) -> None:
    """By rank 0, for all of them."""
    process = start("translate", "--model", str(tmp_path), *SPLIT)
    _, err = process.communicate(b"", timeout=60)
    assert process.returncode == 2 and one_line(err.decode()) and str(tmp_path) in err.decode()


REFUSED = {
    "--workers 2": "have one each",
    "--line-buffered": "all of the input is read first",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_go_together_is_refused(words: str, program: Program) -> None:
    said = program("translate", "--model", "models/demo", *SPLIT, *words.split())
    assert said.status == 2 and one_line(said.err) and REFUSED[words] in said.err


def test_a_rank_of_torchrun_does_not_share_a_pipe(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    process = start("translate", "--model", "models/demo", *SPLIT)
    _, err = process.communicate(b"Guten Tag!", timeout=60)
    assert process.returncode == 2 and "every rank reads the whole input" in err.decode()
