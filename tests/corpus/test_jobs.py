"""Jobs whose rows, workers, devices and disks fail."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import decoding
from decoding.corpus import Done, Job, JobError, Task, run
from decoding.corpus.status import Status
from tests.corpus.tasks import AtOnce, Capitals, Where

ROOT = Path(__file__).parent.parent.parent


def lines(path: Path, *texts: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def job(folder: Path, texts: list[str], task: Capitals | None = None, **options: Any) -> Done:
    lines(folder / "in.txt", *texts)
    options = {"shard_lines": 6} | options  # in two shards
    return run(task or Capitals(), [folder / "in.txt"], folder / "out.txt", **options)


def errors(folder: Path) -> list[tuple[int, str, str]]:
    text = (folder / "out.txt.job/errors.jsonl").read_text("utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    return [(each["row"], each["reason"], each["text"]) for each in found]


def test_rows_stay_in_their_places(tmp_path: Path) -> None:
    """Those that fail too, alone, though they are asked for together with others."""
    texts = ["a", "bad b", "", "d", "e", "bad f", "bad g", "h"]
    done = job(tmp_path, texts, Capitals(group=8), shard_lines=16)
    assert (done.rows, done.errors, done.set_aside) == (8, 3, ())
    assert (tmp_path / "out.txt").read_text() == "A\n\n\nD\nE\n\n\nH\n"
    assert errors(tmp_path)[0] == (2, "'bad b' is too long", "bad b")
    assert [row for row, *_ in errors(tmp_path)] == [2, 6, 7]
    assert not list(done.folder.glob("shard-*"))
    status = json.loads((done.folder / "status.json").read_text())
    assert (status["state"], status["rows"], status["share"]) == ("done", 8, 1.0)


def test_a_fault_of_the_device_is_a_rows_where_others_are_answered(tmp_path: Path) -> None:
    done = job(tmp_path, ["a", "sick b", "c"], Capitals(group=1))
    assert (done.errors, done.set_aside) == (1, ())
    assert errors(tmp_path) == [(2, "the model's numbers are not finite", "sick b")]


def test_a_dead_workers_shard_goes_to_another(tmp_path: Path) -> None:
    texts = ["a", "b", "c", "d", f"die once {tmp_path}/mark", "f", "g"]
    done = job(tmp_path, texts, workers=2)
    assert (done.rows, done.errors, done.set_aside) == (7, 0, ())
    assert (tmp_path / "mark").exists()
    assert (tmp_path / "out.txt").read_text() == "".join(f"{text.upper()}\n" for text in texts)


def test_workers_end_side_by_side(tmp_path: Path) -> None:
    """The job waits for all, but for none before it has told the next one."""
    task = Capitals(seconds=0.05, leaves=str(tmp_path / "leaves"))
    assert job(tmp_path, ["a"] * 40, task, workers=2, shard_lines=1).rows == 40
    assert (tmp_path / "leaves").read_text().split() == ["leaves", "leaves", "left", "left"]


def test_a_shard_that_kills_three_workers_is_set_aside(tmp_path: Path) -> None:
    """Its rows have failed, all others have answers, and a resume tries it again."""
    texts = ["a", "b", "c", "d", "kill me", "f", "g"]
    done = job(tmp_path, texts)
    assert (done.rows, done.errors) == (7, 3)
    [said] = done.set_aside
    assert said.startswith("in.txt, rows 4 to 6 (shard 1): the worker died of SIGKILL")
    assert (tmp_path / "out.txt").read_text() == "A\nB\nC\n\n\n\nG\n"
    assert [row for row, *_ in errors(tmp_path)] == [4, 5, 6]
    assert "ended 3 workers" in errors(tmp_path)[0][1]
    again = job(tmp_path, texts, resume=True)
    assert (again.computed, again.set_aside) == (3, done.set_aside)


def begun(folder: Path) -> Counter[tuple[int, int]]:
    """How often calls were begun, by their first row and how many they have: see Capitals."""
    calls = (line.split() for line in (folder / "begun").read_text().splitlines())
    return Counter((int(first), int(rows)) for first, rows in calls)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_death_costs_no_more_than_the_rows_in_hand(is_shared: bool, tmp_path: Path) -> None:
    """Both shards that the worker had are begun again, if they were begun, and no other."""
    texts = ["a"] * 40
    texts[13] = f"die once {tmp_path}/mark"
    log = str(tmp_path / "begun")
    task = Capitals(seconds=0.02, log=log, group=1, is_shared=is_shared)
    assert job(tmp_path, texts, task, shard_lines=10).rows == 40
    calls = begun(tmp_path)
    assert set(calls) == {(first, 5) for first in range(0, 40, 5)}
    again = {first: times - 1 for (first, _), times in calls.items() if times > 1}
    assert again in ([{10: 1, 15: 1}, {5: 1, 10: 1}] if is_shared else [{10: 1}])


def test_only_a_task_that_is_shared_is_asked_for_two_shards_at_once(tmp_path: Path) -> None:
    for is_shared, seconds, most in ((True, 30.0, "2"), (False, 0.3, "1")):
        (tmp_path / most).mkdir()
        job(tmp_path / most, ["a"] * 6, AtOnce(seconds=seconds, is_shared=is_shared))
        assert (tmp_path / most / "out.txt").read_text() == f"{most}\n" * 6


def test_who_had_a_poisoned_shard_in_hand_too_is_not_blamed(tmp_path: Path) -> None:
    """Its neighbour has an answer, and the worker is not given up."""
    texts = ["a"] * 30
    for number in (4, 10, 16, 22):
        texts[number] = "kill me"
    done = job(tmp_path, texts, Capitals(seconds=0.01, is_shared=True), workers=2)
    assert (done.errors, len(done.set_aside)) == (12, 4)
    assert [row for row, *_ in errors(tmp_path)] == [
        *range(4, 7), *range(10, 13), *range(16, 19), *range(22, 25),
    ]  # fmt: skip


def test_warnings_of_workers_are_told_with_their_place(tmp_path: Path) -> None:
    texts = ["a", "b", "c", "odd d", "odd d", "f", "g", "odd h", "i"]
    task = Capitals(seconds=0.02, is_shared=True)
    with pytest.warns(UserWarning) as caught:
        job(tmp_path, texts, task)
    assert sorted(str(each.message) for each in caught) == [
        "in.txt, behind row 3: 'odd d' is odd",
        "in.txt, behind row 6: 'odd h' is odd",
    ]


def test_a_device_that_is_gone_is_given_up(tmp_path: Path) -> None:
    """The others do its part; without others the job ends, and can be resumed."""
    texts = [str(i) for i in range(9)]
    task = Capitals(gone="the other", seconds=0.02)
    done = job(tmp_path, texts, task, devices=["one", "the other"])
    assert (done.rows, done.errors) == (9, 0)
    (tmp_path / "alone").mkdir()
    with pytest.raises(
        JobError, match="no worker is left: the other: DeviceError: the other has fallen"
    ):
        job(tmp_path / "alone", texts, task, devices=["the other"])
    done = job(tmp_path / "alone", texts, task, devices=["one"], resume=True)
    assert done.computed == 9


def test_a_device_where_all_fails_sets_no_shard_aside(tmp_path: Path) -> None:
    """Others finish what it could not, and it is given up once they have finished three shards."""
    texts = [str(i) for i in range(60)]
    task = Capitals(broken="the other", seconds=0.05, log=str(tmp_path / "begun"))
    done = job(tmp_path, texts, task, devices=["one", "the other"])
    assert (done.rows, done.errors, done.set_aside) == (60, 0, ())
    again = [times > 1 for (_, rows), times in begun(tmp_path).items() if rows == 3]
    assert 1 <= sum(again) <= 10 < len(again) == 20


SEEN = {  # by what the environment has: the workers' devices, and what these see
    None: {"cuda:0 of 0", "cuda:0 of 1", "cuda:2 of all", "cpu of all"},
    "3,GPU-5": {"cuda:0 of 3", "cuda:0 of GPU-5", "cuda:2 of 3,GPU-5", "cpu of 3,GPU-5"},
}


@pytest.mark.parametrize("visible", SEEN)
def test_a_worker_sees_its_gpu_alone(
    visible: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine with two, where CUDA_VISIBLE_DEVICES does not say which there are."""
    monkeypatch.setattr("decoding.corpus.devices.DRIVER", tmp_path / "gpus")
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = ["cuda:0", "cuda:1", "cuda:2", "cpu"]
    job(tmp_path, ["a"] * 40, Where(seconds=0.1), devices=devices, shard_lines=1)
    assert set((tmp_path / "out.txt").read_text().splitlines()) == SEEN[visible]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_a_device_that_vanishes_at_work_blames_no_row(tmp_path: Path) -> None:
    """All rows would fail, so the workers do: the shard is set aside."""
    lines(tmp_path / "gone", "")
    done = job(tmp_path, ["a", "b"], Capitals(vanishes=str(tmp_path / "gone")))
    assert done.set_aside[0].endswith("DeviceError: the device has vanished")
    (tmp_path / "gone").unlink()
    again = job(tmp_path, ["a", "b"], Capitals(vanishes=str(tmp_path / "gone")), resume=True)
    assert (again.errors, (tmp_path / "out.txt").read_text()) == (0, "A\nB\n")


def test_who_resumes_a_finished_job_has_it(tmp_path: Path) -> None:
    job(tmp_path, ["a", "b"], resume=True)
    again = job(tmp_path, ["a", "b"], resume=True)
    assert (again.rows, again.computed) == (2, 0)
    with pytest.raises(ValueError, match="holds a job: pass --resume"):
        job(tmp_path, ["a", "b"])
    (tmp_path / "out.txt").unlink()
    with pytest.raises(ValueError, match="was finished and is not there"):
        job(tmp_path, ["a", "b"], resume=True)


def test_a_task_with_tuples_is_resumed(tmp_path: Path) -> None:
    """The folder has lists in their places."""
    task = Capitals(version=(1, (2, 3)))
    job(tmp_path, ["a", "b"], task)
    assert job(tmp_path, ["a", "b"], task, resume=True).computed == 0
    with pytest.raises(ValueError, match="task.capitals is "):
        job(tmp_path, ["a", "b"], Capitals(version=(1, (2, 4))), resume=True)


def test_a_finished_job_of_a_changed_input_is_refused(tmp_path: Path) -> None:
    """Of the same size too, and where only shards are new."""
    texts = ["a", "b", "c", "d", "e", "f\r"]
    job(tmp_path, texts)
    for changed, message in {
        ("x", "b", "c", "d", "e", "f\r"): "rows 1 to 3 have changed since",
        ("a", "b", "c", "d", "e", "f", ""): "the inputs have 7 rows and had 6 when",
    }.items():
        with pytest.raises(ValueError, match=f"{message}.*: remove .* to begin again"):
            job(tmp_path, [*changed], resume=True)
    assert job(tmp_path, texts, resume=True).computed == 0


def interrupted(folder: Path, room: int, width: int) -> list[str]:
    """A job of five shards, each file of which may have so many bytes. width: of a line."""
    texts = [f"line {i}".ljust(width, ".") for i in range(15)]
    lines(folder / "in.txt", *texts)
    code = (
        "import resource; from decoding.corpus import run; from tests.corpus.tasks import Capitals;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {resource.RLIM_INFINITY}));"
        f"run(Capitals(), [{str(folder / 'in.txt')!r}], {str(folder / 'out.txt')!r}, shard_lines=6)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "File too large" in done.stderr, done.stderr
    return texts


FULL = {  # bytes of a file, of a line, and rows that are finished before the limit is met
    "the journal": (700, 7, range(3, 10)),
    "a shard": (1400, 600, range(1)),
    "the output": (4000, 400, range(15, 16)),
}


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk_costs_nothing_that_is_finished(what: str, tmp_path: Path) -> None:
    room, width, finished = FULL[what]
    texts = interrupted(tmp_path, room, width)
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.txt.job"]
    done = job(tmp_path, texts, resume=True)
    assert (done.rows, done.errors) == (15, 0)
    assert 15 - done.computed in finished
    assert (tmp_path / "out.txt").read_text() == "".join(f"{text.upper()}\n" for text in texts)


def test_a_foreign_resume_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", "b", "c", "kill"]
    assert job(tmp_path, texts).set_aside
    changes: list[tuple[dict[str, Any], str]] = [
        ({"task": Capitals(version=2)}, "task.capitals is 2 and was 1"),
        ({"shard_lines": 4}, "shard_lines is 4 and was 6"),
        ({"texts": ["a", "b", "x", "kill"]}, "rows 1 to 3 have changed since"),
        ({"texts": ["a"]}, 'inputs is \\["in.txt, 2 bytes"\\]'),
    ]
    for change, message in changes:
        options: dict[str, Any] = {"texts": texts, "resume": True} | change
        with pytest.raises(ValueError, match=message):
            job(tmp_path, **options)
    monkeypatch.setattr(decoding, "__version__", "0.0.9")
    with pytest.raises(ValueError, match='holds another job: decoding is "0.0.9" and was'):
        job(tmp_path, texts, resume=True)


def test_two_processes_do_not_work_on_one_job(tmp_path: Path) -> None:
    (tmp_path / "out.txt.job").mkdir()
    with (tmp_path / "out.txt.job/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process works on"):
            job(tmp_path, ["a"])


def test_a_shard_that_was_changed_is_not_merged(tmp_path: Path) -> None:
    done = job(tmp_path, ["a", "b", "c", "kill"])  # the last shard is set aside, so all are kept
    shard = done.folder / "shard-000000"
    shard.write_bytes(shard.read_bytes().lower())
    with pytest.raises(ValueError, match="shard-000000 has changed since it was written"):
        job(tmp_path, ["a", "b", "c", "kill"], resume=True)
    shard.unlink()
    assert job(tmp_path, ["a", "b", "c", "kill"], resume=True).computed == 4
    assert (tmp_path / "out.txt").read_text() == "A\nB\nC\n\n"


def test_mistakes_are_named_before_anything_is_written(tmp_path: Path) -> None:
    text = lines(tmp_path / "in.txt", "a")
    (tmp_path / "in.jsonl").write_text("{}\n")
    cases: list[tuple[Any, ...]] = [
        ([], "out.txt", {}, "needs files"),
        ([tmp_path / "no*.txt"], "out.txt", {}, "no file has such a name"),
        ([text, text], "out.txt", {}, "named twice"),
        ([text, tmp_path / "in.jsonl"], "out.txt", {}, "one format, not json and lines"),
        ([text], "in.txt", {}, "is an input too"),
        ([text], ".", {}, "is an input too"),
        ([text], "out.txt", {"shard_lines": 0}, "at least 1"),
        ([text], "out.txt", {"devices": ["cpu", "cpu"], "workers": 2}, "one worker"),
        ([text], "out.csv", {"output_format": "json"}, "would hold json"),
        ([tmp_path / "in.jsonl"], "out.csv", {}, "no fixed columns"),
        ([text], "out.txt", {"input_format": "yaml"}, "must be one of"),
        ([text], "out.txt", {"encoding": "utf-16"}, "lines of utf-16 do not end with one byte"),
        ([text], "out.txt", {"encoding": "latin-99"}, "there is no encoding 'latin-99'"),
        ([text], "out.txt", {"errors": "ignore"}, "errors must be one of strict, replace, skip"),
    ]
    for inputs, output, options, message in cases:
        with pytest.raises((ValueError, OSError), match=message):
            Job(Capitals(), inputs, tmp_path / output, **options)
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "in.txt"]
    latin = tmp_path / os.fsdecode(b"caf\xe9.txt")
    lines(latin, "a")
    for source, output in ((latin, tmp_path / "out.txt"), (text, tmp_path / f"{latin.name}.out")):
        with pytest.raises(ValueError, match=r"the file '.*caf\\udce9.txt.*' is not UTF-8"):
            Job(Capitals(), [source], output)
    with pytest.raises(ValueError, match="a task is one of translate"):
        Task("summarise", "demo")


def test_the_parent_imports_no_engine(tmp_path: Path) -> None:
    lines(tmp_path / "in.txt", "a")
    code = (
        "import sys; from decoding.corpus import run; from tests.corpus.tasks import Capitals;"
        f"run(Capitals(), [{str(tmp_path / 'in.txt')!r}], {str(tmp_path / 'out.txt')!r});"
        "print(*{'torch', 'numpy', 'decoding._C'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"\n"


def test_a_job_without_a_finished_shard_may_be_another(tmp_path: Path) -> None:
    """After a mistake in an option, say."""
    with pytest.raises(JobError, match="no worker is left"):
        job(tmp_path, ["a"], Capitals(gone="auto"))
    assert job(tmp_path, ["b"], Capitals(version=2)).rows == 1


def test_an_interrupted_job_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its status has rows, the time left, and workers."""
    write, written = Status.write, list[dict[str, Any]]()

    def observed(self: Status, workers: Any, state: str = "running") -> None:
        self._next = 0.0  # each time
        write(self, workers, state)
        written.append(json.loads((tmp_path / "out.txt.job/status.json").read_text()))
        if state == "running" and written[-1]["shards"] >= 2:  # more, on a busy machine
            raise KeyboardInterrupt

    monkeypatch.setattr(Status, "write", observed)
    with pytest.raises(KeyboardInterrupt):
        job(tmp_path, [str(i) for i in range(15)], Capitals(seconds=0.1), progress=True)
    assert written[-1]["state"] == "interrupted" and 6 <= written[-1]["rows"] < 15
    assert written[-2]["share"] > 0.3 and written[-2]["seconds_left"] > 0
    assert written[-2]["workers"][0]["process"] not in (None, os.getpid())
    assert "rows/s" in capsys.readouterr().err
    monkeypatch.undo()
    assert job(tmp_path, [str(i) for i in range(15)], resume=True).rows == 15
