"""`decoding shortlist`: what it learns, writes and says, and `translate --shortlist`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import decoding
from decoding import Shortlist
from tests.cli.program import Program
from tests.support import random_models
from tests.support.stand_in import EOS, FIRST, StandIn, Words

SOURCE = "das haus\ndas buch\n\nein buch\nnichts\n"
TARGET = "the house\nthe book\nno source\na book\n\n"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "source").write_text(SOURCE)
    (tmp_path / "target").write_text(TARGET)
    return tmp_path


@pytest.fixture
def run(folder: Path, program: Program) -> Run:
    """Runs a command with one model and files of the folder; returns its exit code and what it
    said."""

    def run(model: decoding.Model, command: str, **files: str) -> tuple[int, str]:
        words = [x for name, file in files.items() for x in (f"--{name}", str(folder / file))]
        status, _, err = program(*command.split(), "--model", "any", *words, model=model)
        return status, err

    return run


FILES = {"source": "source", "target": "target", "output": "map.npz"}


def test_a_map_of_parallel_text(run: Run, folder: Path) -> None:
    model = StandIn()
    code, said = run(model, "shortlist --candidates 2 --frequent 3", **FILES)
    assert code == 0 and said.startswith("3 pairs in ") and " of 9999 tokens\n" in said
    found = Shortlist.load(folder / "map.npz")
    assert (found.candidates.shape, found.target_ids) == ((9999, 2), 9999)
    assert isinstance(model.tokenizer, Words)
    number = {word: FIRST + i for i, word in enumerate(model.tokenizer.words)}
    for source, target in (("das", "the"), ("haus", "house"), ("ein", "a"), ("buch", "book")):
        assert number[target] in found.candidates[number[source]]
    assert (found.candidates[number["the"]] == -1).all()
    assert set(found.frequent.tolist()) == {EOS, number["the"], number["book"]}


def test_very_long_pairs_are_left_out(run: Run, folder: Path) -> None:
    for name, line in (("source", "x " * 300), ("target", "y")):
        with (folder / name).open("a") as file:
            file.write(f"{line}\n")
    assert run(StandIn(), "shortlist", **FILES)[1].startswith("3 pairs")


@pytest.mark.parametrize(
    ("source", "files", "says"),
    [
        ("das haus\n", {}, "the source has only 1 line:"),
        ("\n\n\n\n\n", {}, "no pair of sentences"),
        (SOURCE, {"source": "none"}, "none: No such file"),
        (SOURCE, {"output": "target"}, "is the input too"),
        (SOURCE, {"output": "no/folder"}, "no/folder: No such file"),
    ],
)
def test_mistakes_are_one_line(
    run: Run, folder: Path, source: str, files: dict[str, str], says: str
) -> None:
    (folder / "source").write_text(source)
    code, said = run(StandIn(), "shortlist", **(FILES | files))
    assert code == 2 and says in said and said.count("\n") == 1
    assert (folder / "target").read_text() == TARGET


def test_one_standard_input_is_not_both_sides(program: Program, tmp_path: Path) -> None:
    words = ["--source", "-", "--target", "-", "--output", str(tmp_path / "map.npz")]
    status, _, err = program(
        "shortlist", "--model", "any", *words, source="a\nb\n", model=StandIn()
    )
    assert status == 2 and "source and target are both standard input" in err


def test_a_decoder_alone_has_no_map(run: Run) -> None:
    code, said = run(random_models.ours("gpt2"), "shortlist", **FILES)
    assert code == 2 and "a decoder alone" in said


def test_translate_takes_it(run: Run, folder: Path) -> None:
    model = StandIn()
    run(model, "shortlist", **FILES)
    files = {"input": "source", "output": "out", "shortlist": "map.npz"}
    assert run(model, "translate", **files)[0] == 0
    assert model.calls
    for _, options in model.calls:
        assert isinstance(options["shortlist"], Shortlist)
    code, said = run(model, "translate", **(files | {"shortlist": "source"}))
    assert code == 2 and "source is no shortlist" in said
    run(model, "translate", input="source", output="out")
    assert model.calls[-1][1]["shortlist"] is None
