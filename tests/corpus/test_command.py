"""Commands as jobs: what they write is what the same command makes of a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decoding
from decoding.corpus import RowTask, Task
from decoding.corpus import job as jobs
from decoding.corpus.isolation import Isolated
from tests.cli.program import Program
from tests.corpus.pool_here import PoolHere
from tests.support.sentences import write_bert

ROOT = Path(decoding.__file__).parent.parent
DEMO, STORIES = str(ROOT / "models/demo"), str(ROOT / "tests/data/stories260K")


@pytest.fixture
def program(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Program:
    monkeypatch.setattr(jobs, "Pool", PoolHere)
    monkeypatch.chdir(tmp_path)
    return Program(monkeypatch, capsysbinary)


def same(program: Program, command: str, *words: str, name: str = "in.txt") -> str:
    """What a job writes, which is what the stream is answered with."""
    streamed = program(command, "--threads", "1", *words, name)
    assert streamed.status == 0, streamed.err
    done = program(
        *(command, "--threads", "1", *words, "-i", name, "-o", f"out.{name}", "--shard-lines", "6")
    )
    assert (done.status, done.out) == (0, ""), done.err
    written = Path(f"out.{name}").read_text("utf-8")
    assert written == streamed.out
    return written


GERMAN = "Guten Morgen, hast du gut geschlafen?\n\nIch habe keine Zeit.\nJa.\nDas ist ein Haus.\n"


def test_translate(program: Program) -> None:
    Path("in.txt").write_text(GERMAN)
    assert same(program, "translate", "-m", DEMO).startswith("Good morning, did you sleep well?")


def test_translate_with_all_that_json_has(program: Program) -> None:
    prefixed = {"id": 7, "text": "Ja.", "target_prefix": "Well,", "max_new_tokens": 5}
    given = [{"text": line, "n": i} for i, line in enumerate(GERMAN.splitlines())]
    Path("in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in given))
    options = ("--n-best", "2", "--alignments", "--num-beams", "2", "--input-format", "json")
    same(program, "translate", "-m", DEMO, *options, name="in.jsonl")
    Path("one.jsonl").write_text(json.dumps(prefixed) + "\n")
    found = same(program, "translate", "-m", DEMO, "--input-format", "json", name="one.jsonl")
    answer = json.loads(found)
    assert answer["translation"].startswith("Well,") and answer["tokens"] <= 5


def test_scores_of_translations(program: Program) -> None:
    Path("in.txt").write_text(GERMAN.replace("\n\n", "\n"))
    assert " ||| -0." in same(program, "translate", "-m", DEMO, "--scores", "--num-beams", "2")


def test_options_that_are_0_or_false(program: Program) -> None:
    Path("in.txt").write_text(GERMAN.replace("\n\n", "\n"))
    options = ("--num-beams", "2", "--scores", "--length-penalty", "0", "--early-stopping", "false")
    assert " ||| -2." in same(program, "translate", "-m", DEMO, *options)
    Path("texts").write_text("Once upon a time\nThe dog\n")
    options = ("--do-sample", "--seed", "0", "--top-k", "0", "--max-new-tokens", "20")
    same(program, "generate", "-m", STORIES, *options, name="texts")


def test_generate(program: Program) -> None:
    """Each row has its own seed, and signs for newlines."""
    Path("in.txt").write_text("Once upon a time\n\nThe dog\\nA cat\nOne day,\n")
    options = ("--do-sample", "--seed", "3", "--max-new-tokens", "20", "--n-best", "2", "--json")
    same(program, "generate", "-m", STORIES, *options[:-3])
    Path("out.in.txt").unlink()
    Path("out.in.txt.job").rename("before")
    own = '{"prompt": "Once", "max_new_tokens": 3, "temperature": 2.0, "seed": 9}\n'
    Path("in.jsonl").write_text(own + '{"prompt": "The\\ndog"}\n')
    same(program, "generate", "-m", STORIES, *options, "--input-format", "json", name="in.jsonl")


def test_an_empty_line_is_no_chat(program: Program) -> None:
    Path("template").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    Path("in.txt").write_text("Once upon a time\n\nThe dog\n")
    chat = ("--chat", "--chat-template", "template", "--system", "Lily.")
    found = same(program, "generate", "-m", STORIES, *chat, "--max-new-tokens", "8")
    first, empty, last = found.splitlines()
    assert first and last and not empty


def test_prompts_that_are_too_long_fail_alone(program: Program) -> None:
    Path("in.txt").write_text("Once\n" + "upon a time " * 600 + "\nThe dog\n")
    done = program(
        *("generate", "-m", STORIES, "-i", "in.txt", "-o", "out.txt", "--shard-lines", "9"),
        *("--max-new-tokens", "5"),
    )
    assert done.status == 3
    assert "1 row failed: out.txt.job/errors.jsonl says why" in done.err
    lines = Path("out.txt").read_text().splitlines()
    assert len(lines) == 3 and lines[0] and not lines[1] and lines[2]
    assert "tokens, and the model has 512 positions" in Path("out.txt.job/errors.jsonl").read_text()


def test_score(program: Program) -> None:
    Path("in.tsv").write_text("Guten Morgen.\tGood morning.\nJa\t\n\t\nJa\tYes\n")
    same(program, "score", "-m", DEMO, "--input-format", "tsv", name="in.tsv")
    Path("in.txt").write_text("Once upon a time\nThe dog\n")
    same(program, "score", "-m", STORIES)


def test_columns_of_tsv_become_json(program: Program) -> None:
    """All of them, by their numbers; signs are read back in the text alone."""
    Path("in.txt").write_text("C:\\new\tJa.\n2\tDas ist\\nein Haus.\n")
    options = ("--input-format", "tsv", "--column", "2", "--json")
    found = same(program, "translate", "-m", DEMO, *options).splitlines()
    assert json.loads(found[0])["1"] == "C:\\new" and json.loads(found[0])["2"] == "Ja."
    Path("out.in.txt.job").rename("before")
    found = same(program, "generate", "-m", STORIES, *options, "--max-new-tokens", "3").splitlines()
    assert json.loads(found[0])["1"] == "C:\\new"
    assert json.loads(found[1])["2"] == "Das ist\nein Haus."


def test_signs_are_carried_through(program: Program) -> None:
    """To TSV as they were; CSV and JSON need none."""
    Path("in.txt").write_text("Once\\nupon\n")
    words = ("generate", "-m", STORIES, "--max-new-tokens", "3", "-i", "in.txt", "--workers", "1")
    for name, expected in {
        "out.tsv": "prompt\tcompletion\nOnce\\nupon\t",
        "out.csv": 'prompt,completion\n"Once\nupon",',
        "out.jsonl": '{"prompt": "Once\\nupon", ',
    }.items():
        assert program(*words, "-o", name).status == 0
        assert Path(name).read_text().startswith(expected)


def test_a_command_is_a_job_where_it_is_asked_for_one(program: Program) -> None:
    Path("in.txt").write_text("Ja.\n")
    Path("folder").mkdir()
    words = ("translate", "-m", DEMO, "-i", "in.txt", "--quiet")
    for output in ("folder", "other/", "out.txt.gz"):
        assert program(*words, "-o", output) == (0, "", "")
    assert Path("folder/in.txt").read_text() == Path("other/in.txt").read_text() == "Yes.\n"
    assert program(*words, "-o", "out.txt") == (0, "", "") and not Path("out.txt.job").exists()
    for wrong, message in {
        ("--workers", "2"): "a job writes files: say --output",
        ("--workers", "2", "-o", "x", "--line-buffered"): "answers a stream line by line",
        ("--devices", "a", "-o", "x"): "--devices must be all or numbers such as 0,1,3",
        ("--devices", "0", "--workers", "2", "-o", "x"): "leave --workers out",
        ("--devices", "all", "-o", "x"): "this machine has no GPU",
        ("-o", "out.csv.gz", "--output-format", "json"): "would hold json",
    }.items():
        said = program(*words, *wrong)
        assert said.status == 2 and message in said.err, said.err


@pytest.mark.parametrize(
    ("command", "ending", "text", "missing"),
    [
        ("translate -m demo", "csv", "n,satz\n1,Ja.\n", "text"),
        ("translate -m demo --column wort", "csv", "n,satz\n1,Ja.\n", "wort"),
        ("translate -m demo --column 3", "tsv", "1\tJa.\n", "3"),
        ("generate -m demo --chat", "csv", "prompt\nJa.\n", "messages"),
        ("embed -m demo", "csv", "n,satz\n1,Ja.\n", "text"),
        ("score -m demo", "csv", "de,en\nJa.,Yes.\n", "target"),
        ("score -m demo --source-column de", "csv", "source,target\nJa.,Yes.\n", "de"),
    ],
)
def test_a_column_that_a_table_lacks_is_named_at_once(
    program: Program, command: str, ending: str, text: str, missing: str
) -> None:
    Path(f"in.{ending}").write_text(text)
    words = (*command.split(), "-i", f"in.{ending}", "-o", "out.jsonl", "--json")
    done = program(*words, "--shard-lines", "9")
    assert done.status == 2, done.err
    assert f"in.{ending} has no column '{missing}': it has " in done.err
    assert not Path("out.jsonl.job").exists()


def test_a_fault_of_the_device_is_no_rows() -> None:
    """Before any row has been answered nobody knows, so the worker ends."""

    class Broken:
        is_shared = False

        def read(self, row: Any) -> Any:
            return row

        def __call__(self, given: Any, numbers: Any) -> Any:
            raise decoding.Error("no GPU")

    with pytest.raises(decoding.Error, match="no GPU"):
        list(Isolated(Broken())([1, 2], [0, 1]))
    task: RowTask = Task("embed", "demo")  # which mypy holds against the protocol
    assert task.answers == {"embedding": "vector"}


def test_embed(program: Program) -> None:
    """Vectors as JSON lines, and as a column of lists in Parquet."""
    pq = pytest.importorskip("pyarrow.parquet")
    Path("model").mkdir()
    write_bert(Path("model"))
    Path("in.txt").write_text("A text.\n\nTwo texts\n")
    same(program, "embed", "-m", "model", "--json")
    words = ("embed", "-m", "model", "-i", "in.txt")
    assert program(*words, "-o", "out.parquet").status == 0
    found = pq.read_table("out.parquet")
    written = [json.loads(line) for line in Path("out.in.txt").read_text().splitlines()]
    vectors = [each["embedding"] for each in written]
    given: list[Any] = [np.array(each, np.float32) for each in found["embedding"].to_pylist()]
    assert np.array_equal(given, np.array(vectors, np.float32))
    refused = program(*words, "-o", "out.npy", "--workers", "1", "--output-format", "npy")
    assert refused.status == 2 and "vectors as json or parquet" in refused.err
