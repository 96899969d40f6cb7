"""The command `compare`: what it makes of its arguments, and what is written when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import decoding
from decoding.cli import compare as arguments_of
from decoding.cli import comparing as command
from decoding.cli.main import main
from decoding.compare.comparison import Plan
from decoding.compare.results import Check, Comparison, Run
from tests.support.demo import DEMO

LINES = ["Das ist ein Haus.", "Ja."]
DONE = Comparison(
    "demo",
    "text.txt",
    "out",
    2,
    {},
    (Check("ours", "float32", "cpu", 1, "ours float32 cpu", sentences=2, identical=2),),
    (Run("ours", "v", "", "float32", "cpu", 1, 1, 8, 9, 1.0, 2.0, 3.0, roofline_bound=1.0),),
)


class Program:
    """Runs `decoding compare` on the demo model; nothing is measured, `plan` is what would be."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text, self.states = folder / "text.txt", [DONE]
        self.text.write_text("\n".join(LINES), encoding="utf-8")
        self.interrupted = False
        monkeypatch.setattr(command, "compare", self.compare)

    def compare(self, plan: Plan) -> Iterator[Comparison]:
        self.plan = plan
        yield from self.states
        if self.interrupted:
            raise KeyboardInterrupt

    def __call__(self, *arguments: str) -> int:
        given = ["--model", str(DEMO), "--text", str(self.text), "--device", "cpu", *arguments]
        try:
            return main(["compare", *given])
        except SystemExit as left:
            return int(left.code or 0)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(tmp_path, monkeypatch)


def test_what_is_compared(program: Program) -> None:
    options = "--batch 8 1 8 --beams 2 --lengths 16 --dtype float32 int8 --rounds 3 --threads 1"
    limits = "--memory-limit 0.5 --time-limit 9 --tokenisation in --lines 1"
    assert program(*options.split(), *limits.split(), "--against", "hf") == 0
    plan = program.plan
    assert (plan.name, plan.text.name, plan.text.sources) == ("demo", "text.txt", LINES[:1])
    assert [engine.name for engine in plan.engines] == ["huggingface", "ours"]
    assert (plan.batch, plan.beams, plan.lengths) == ([1, 8], [2], [16])
    assert (plan.dtypes, plan.devices, plan.threads) == (["float32", "int8"], ["cpu"], 1)
    assert (plan.limits.memory, plan.limits.seconds) == (0.5e9, 9)
    assert (plan.tokenisation, plan.rounds) == ("in", 3)
    assert plan.longest_answer == 2 * len(plan.text.ids[0]) + 49


def test_what_it_says_and_writes(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program("--against", "hf", "--json", str(tmp_path / "found.json")) == 0
    out, err = capsys.readouterr()
    assert "2 of 2 lines" in out and "float32" in out and err == ""
    assert (tmp_path / "found.json").read_text(encoding="utf-8") == DONE.to_json()


def test_the_page(program: Program, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert program("--against", "hf", "--html", str(tmp_path / "page.html")) == 0
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_ctrl_c_leaves_what_is_finished(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.interrupted = True
    assert program("--against", "hf", "--json", str(tmp_path / "found.json")) == 130
    assert "2 of 2 lines" in capsys.readouterr().out
    found = Comparison.from_json((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert repr(found) == repr(DONE)  # from Python 3.13 on no NaN in them is equal to itself


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("--against bing", "there is no engine 'bing'"),
        ("--against ours", "nothing to compare with"),
        ("--memory-limit 0", "must be a number above 0"),
        ("--lengths 511", "this model has 512 positions"),
        ("--dtype float16 --against hf", "no engine computes in such a type"),
        ("--tgt-lang de", "has no languages to name"),
        ("--references nowhere.txt", "nowhere.txt"),
    ],
)
def test_mistakes(
    program: Program, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    assert program(*arguments.split()) == 2
    assert said in capsys.readouterr().err


def test_a_library_that_is_missing_is_said_at_once(
    program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments_of, "find_spec", lambda _: None)
    assert program("--html", "page.html") == 2
    assert "--html: needs matplotlib: pip install .[compare]" in capsys.readouterr().err


def test_lines_that_are_too_long_are_said(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    program.text.write_text("Ja.\n" + "sehr " * 600 + "\n", encoding="utf-8")
    assert program("--against", "hf") == 0
    assert "1 line left out, of fewer than 1 or more than 512 tokens" in capsys.readouterr().err
    assert program.plan.text.sources == ["Ja."]


def test_the_demo_by_its_name(program: Program) -> None:
    assert program("--model", "demo", "--against", "hf") == 0
    assert program.plan.name == "demo" and program.plan.task.directory == DEMO


@pytest.mark.parametrize("kind", ["stories", "converted"])
def test_a_checkpoint_that_others_cannot_read(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder = DEMO.parents[1] / "tests/data/stories260K"
    if kind == "converted":
        folder = tmp_path / "converted"
        decoding.load(DEMO, device="cpu").save(folder)
    assert program("--model", str(folder)) == 2
    assert "is no Hugging Face directory: the other engines cannot" in capsys.readouterr().err


def test_what_was_recorded_is_shown_again(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, page, again = (tmp_path / name for name in ("found.json", "page.html", "again.html"))
    assert program("--against", "hf", "--json", str(found), "--html", str(page)) == 0
    said = capsys.readouterr().out
    assert main(["compare", "--from", str(found), "--html", str(again)]) == 0
    assert capsys.readouterr().out == said and again.read_bytes() == page.read_bytes()
    assert main(["compare", "--from", str(found)]) == 0 and capsys.readouterr().out == said
    for option in ("--model x", "--text x", "--rounds 3", "--json x", "--trust-paths", "--beams 2"):
        assert main(["compare", "--from", str(found), *option.split()]) == 2
        said = f"{option.split()[0]} measures anew: leave it or --from out"
        assert said in capsys.readouterr().err
    assert main(["compare", "--from", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    page.write_text("{}")
    assert main(["compare", "--from", str(page)]) == 2
    assert f"{page}: " in capsys.readouterr().err
    with pytest.raises(SystemExit):  # the options are needed again
        main(["compare", "--text", "x"])
    assert "--model" in capsys.readouterr().err


def test_files_elsewhere(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    for file in DEMO.resolve().iterdir():
        (folder / file.name).symlink_to(file)
    assert program("--model", str(folder), "--against", "hf") == 2
    assert "trust" in capsys.readouterr().err
    assert program("--model", str(folder), "--against", "hf", "--trust-paths") == 0
    assert program.plan.task.trust_paths
    assert program.plan.task.load_tokenizer().encode(LINES[1])


@pytest.mark.slow
def test_the_demo_model_against_its_peers(device: str, tmp_path: Path) -> None:
    """Everything at once, in processes of their own."""
    peers = ["huggingface"]
    if device == "cpu":
        pytest.importorskip("ctranslate2")
        peers.append("ctranslate2")
    text, found = tmp_path / "text.txt", tmp_path / "found.json"
    text.write_text("\n".join(LINES), encoding="utf-8")
    options = f"--device {device} --dtype float32 --against {','.join(peers)}"
    options += " --threads 1 --batch 2 --beams 2 --lengths 4 --rounds 1"
    files = ["--model", str(DEMO), "--text", str(text), "--references", str(text)]
    assert main(["compare", *files, *options.split(), "--json", str(found)]) == 0
    comparison = Comparison.from_json(found.read_text(encoding="utf-8"))
    assert comparison.finished
    for check in comparison.checks:
        assert check.identical == check.sentences == 2 and check.largest < 1e-3
        assert 0 <= check.bleu < 100
    assert [run.engine for run in comparison.runs] == [*peers, "ours"]
    for run in comparison.runs:
        assert run.error == "" and run.p50 > 0 and run.first_token > 0
        assert run.memory > 0 or device == "cuda"  # where others may give memory back meanwhile
        assert run.roofline_bound > 0 and run.intensity > 0
        assert run.bound_by == ("memory" if device == "cpu" else "launches")
