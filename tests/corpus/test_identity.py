"""What a job's task is, so that a job which is resumed is the same one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoding.corpus import Job, Task
from decoding.corpus.folder import differences
from decoding.corpus.task import checksums

ROOT = Path(__file__).parent.parent.parent


def test_what_changes_answers_makes_another_task(tmp_path: Path) -> None:
    """The model's files, their numbers too; not what only says how fast they are found."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests/data/stories260K", model)
    task = Task("generate", str(model), options={"num_beams": 2})
    found = task.identity()
    assert replace(task, load={"threads": 3}).identity() == found
    for change in ({"options": {"num_beams": 3}}, {"load": {"dtype": "int8"}}, {"column": "a"}):
        assert differences(replace(task, **change).identity(), found)
    weights = max(model.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    [said] = differences(task.identity(), found)
    assert said.startswith(f"model.{weights.name} is ")


def test_files_that_a_task_names_are_part_of_it(tmp_path: Path) -> None:
    """What a path holds, not the path alone: a shortlist, and another tokenizer's files."""
    (tmp_path / "tokenizer").mkdir()
    for name in ("list.npz", "tokenizer/dict.de.txt", "tokenizer/bpecodes"):
        (tmp_path / name).write_text("before")
    load = {"tokenizer": str(tmp_path / "tokenizer")}
    options = {"shortlist": str(tmp_path / "list.npz")}
    task = Task("translate", str(ROOT / "models/demo"), load=load, options=options)
    for name, said in {
        "list.npz": "shortlist",
        "tokenizer/dict.de.txt": "tokenizer.dict.de.txt",
        "tokenizer/bpecodes": "tokenizer.bpecodes",
    }.items():
        found = task.identity()
        (tmp_path / name).write_text("after")
        [difference] = differences(task.identity(), found)
        assert difference.startswith(f"{said} is ")


@pytest.mark.parametrize("value", [Path("list.npz"), {(5, 6): -1.0}, {1, 2}])
def test_an_option_that_json_cannot_hold_is_named(value: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Ja.\n")
    task = Task("translate", str(ROOT / "models/demo"), options={"option": value})
    with pytest.raises(TypeError, match=r"task\.options\.option is .*: a job writes down"):
        Job(task, [tmp_path / "in.txt"], tmp_path / "out.txt").run()


def test_a_checkpoint_has_the_dictionaries_beside_it(tmp_path: Path) -> None:
    """And not the other checkpoints of its training."""
    for name in ("best.pt", "last.pt", "dict.en.txt", "errors.json"):
        (tmp_path / name).write_text(name)
    assert list(checksums(tmp_path / "best.pt")) == ["best.pt", "dict.en.txt"]
