"""The program: what it reads, writes and says, and how it ends."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import decoding
from decoding.cli.main import main
from examples import demo
from tests.support import random_models, stand_in

ROOT = Path(decoding.__file__).parent.parent


class Program:
    """Runs the program in this process, with the stand-in for a model."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self.monkeypatch, self.capture = monkeypatch, capture
        monkeypatch.setattr(decoding, "load", self.load)
        self.loaded: dict[str, Any] = {}
        self.model = stand_in.StandIn()
        self.positions = 512

    def load(self, name: str, **arguments: Any) -> stand_in.StandIn:
        self.loaded = arguments
        self.model = stand_in.load(name, self.positions)
        return self.model

    def __call__(self, *arguments: str, source: bytes | io.BytesIO = b"") -> tuple[int, str, str]:
        """Exit code, standard output and standard error of `decoding translate`."""
        stream = io.BytesIO(source) if isinstance(source, bytes) else source
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        try:
            code = main(["translate", "--model", "words", *arguments])
        except SystemExit as left:
            code = int(left.code or 0)
        out, err = self.capture.readouterr()
        return code, out.decode(), err.decode()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Program:
    return Program(monkeypatch, capsysbinary)


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n")


def test_text_in_text_out(program: Program) -> None:
    code, out, err = program(source="ein haus\n\nzwei äpfel\r\n  \nende".encode())
    assert (code, out) == (0, "EIN HAUS\n\nZWEI ÄPFEL\n\nENDE\n")
    assert one_line(err) and err.startswith("5 lines, 8 tokens in ")
    assert "sentences/s" in err and "tokens/s with 1 threads" in err


def test_nothing_in_nothing_out(program: Program) -> None:
    code, out, err = program()
    assert (code, out) == (0, "") and err.startswith("0 lines, 0 tokens")


def test_one_line_for_each_line_even_where_the_model_breaks_one(program: Program) -> None:
    program.monkeypatch.setattr(stand_in.Words, "decode", lambda *_, **__: "a\nb")
    assert program(source=b"x\n")[1] == "a b\n"


def test_files(program: Program, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a b\nc\n")
    code, out, _ = program("--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"))
    assert (code, out) == (0, "")
    assert (tmp_path / "out").read_bytes() == b"A B\nC\n"


def test_scores_and_n_best(program: Program) -> None:
    source = b"a b\n\nc\n"
    assert program("--scores", source=source)[1] == "A B ||| -0.0300\n ||| 0.0000\nC ||| -0.0200\n"
    best = "0 ||| A B ||| -0.0300\n0 ||| A B B ||| -1.0400\n"
    rest = "1 |||  ||| 0.0000\n2 ||| C ||| -0.0200\n2 ||| C C ||| -1.0300\n"
    assert program("--n-best", "2", source=source)[1] == best + rest
    assert program("--n-best", "2", "--scores", source=source)[1] == best + rest


def test_order_of_many_lines(program: Program) -> None:
    lines = [f"w{i % 97} " * (i * 7 % 13) for i in range(1000)]
    code, out, _ = program("--batch-tokens", "50", source="\n".join(lines).encode())
    assert code == 0
    assert out.splitlines() == [line.strip().upper() for line in lines]
    assert len(program.model.calls) > 20


def test_arguments_reach_the_model(program: Program) -> None:
    program("--threads", "3", "--device", "cpu", "--dtype", "float32", source=b"a\n")
    assert program.loaded == {"device": "cpu", "dtype": "float32", "threads": 3}
    search = "--num-beams 2 --length-penalty 0.5 --early-stopping never --max-length 9"
    program(*search.split(), source=b"a\n")
    [(_, options)] = program.model.calls
    expected = {"num_beams": 2, "length_penalty": 0.5, "early_stopping": "never", "max_length": 9}
    assert expected.items() <= options.items()
    extras = "--early-stopping true --patience 2 --length-normalization gnmt --coverage-penalty 0.3"
    extras += " --diversity-rate 0.2 --repetition-penalty 1.2 --no-repeat-ngram-size 3"
    program(*extras.split(), source=b"a\n")
    [(_, options)] = program.model.calls
    expected = {"early_stopping": True, "patience": 2.0, "length_normalization": "gnmt"}
    expected |= {"coverage_penalty": 0.3, "diversity_rate": 0.2, "repetition_penalty": 1.2}
    assert expected.items() <= options.items() and options["no_repeat_ngram_size"] == 3
    program(*"--num-beam-groups 2 --diversity-penalty 0.5".split(), source=b"a\n")
    [(_, options)] = program.model.calls
    assert {"num_beam_groups": 2, "diversity_penalty": 0.5}.items() <= options.items()
    sampling = "--num-beams 1 --do-sample --temperature 0.5 --top-k 3 --top-p 0.9 --seed 4"
    program(*sampling.split(), *"--max-new-tokens 5 --min-p 0.1".split(), source=b"a\n")
    [(_, options)] = program.model.calls
    expected = {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 4}
    assert expected.items() <= options.items() and options["max_new_tokens"] == 5
    assert options["min_p"] == 0.1
    program(source=b"a\n")
    [(_, options)] = program.model.calls
    assert not {*expected, "num_beams", "early_stopping", "max_length"} & set(options)
    program("--early-stopping", "false", source=b"a\n")
    assert program.model.calls[0][1]["early_stopping"] is False


def test_warnings_are_one_line_each(program: Program) -> None:
    program.positions = 8
    code, out, err = program(source=b"a bb. C d.\n" * 2)
    assert (code, out) == (0, "A BB. C D.\n" * 2)
    first, second, summary, end = err.split("\n")
    assert first.startswith("decoding: warning: line 1 has 5 tokens")
    assert second.startswith("decoding: warning: line 2 has 5 tokens")
    assert "2 lines" in summary and end == ""


def test_progress(program: Program, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n\nb\n")
    _, out, err = program("--progress", "--input", str(tmp_path / "in"))
    assert out == "A\n\nB\n"
    assert "3/3" in err and "sentences/s" in err and "100%" in err
    assert "3/3" not in program("--input", str(tmp_path / "in"))[2]


def test_without_a_total_progress_counts_alone(program: Program) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    _, out, err = program("--progress", source=Pipe(b"a\nb\n"))
    assert out == "A\nB\n" and "2 sentences" in err and "/2" not in err


def test_who_types_a_line_gets_its_translation(program: Program) -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

        def __next__(self) -> bytes:
            seen.append(len(program.model.calls))
            return super().__next__()

    seen: list[int] = []
    assert program(source=Terminal(b"a\nb\nc\n"))[1] == "A\nB\nC\n"
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num-beams", "0"], "num_beams must be at least 1, got 0"),
        (["--num-beams", "two"], "--num-beams"),
        (["--n-best", "0"], "must be a whole number of at least 1, got '0'"),
        (["--n-best", "9"], "num_return_sequences=9"),
        (["--num-beams", "1", "--scores"], "num_beams must be at least 2"),
        (["--early-stopping", "maybe"], "early_stopping must be True, False"),
        (["--input", "there is none"], "there is none: No such file"),
        (["--output", "no/folder/out"], "no/folder/out: No such file"),
        (["--model", "unknown"], "unknown/config.json is missing"),
        (["--bad-option"], "--bad-option"),
    ],
)
def test_mistakes_are_one_line(program: Program, arguments: list[str], says: str) -> None:
    code, out, err = program(*arguments, source=b"a\n")
    assert (code, out) == (2, "")
    assert one_line(err) and says in err and err.startswith("decoding")


def test_invalid_utf8_names_the_line(program: Program) -> None:
    code, out, err = program(source=b"a\nb\nM\xfcller\n")
    assert (code, out) == (2, "")
    assert err == "decoding: error: standard input, line 3 is not UTF-8: byte 2 is 0xfc\n"


def test_what_is_finished_is_kept(program: Program, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a b\n" * 100 + b"\xff\n")
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    code, _, err = program(*files, "--batch-tokens", "10")
    assert code == 2 and f"{tmp_path / 'in'}, line 101" in err
    kept = (tmp_path / "out").read_bytes()
    assert 50 < kept.count(b"\n") <= 100 and kept == b"A B\n" * kept.count(b"\n")


def test_an_older_output_survives_mistakes(program: Program, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"old\n")
    assert program("--output", str(tmp_path / "text"), "--num-beams", "0")[0] == 2
    both = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "text")]
    code, _, err = program(*both)
    assert code == 2 and "is the input too" in err
    assert (tmp_path / "text").read_bytes() == b"old\n"


def started(*arguments: str, source: Path) -> subprocess.Popen[bytes]:
    """The program as a process of its own, with the stand-in."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.stand_in", "translate", *arguments],
        cwd=ROOT,
        stdin=source.open("rb"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_ctrl_c_leaves_finished_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"".join(b"line %d\n" % i for i in range(10000)))
    arguments = ["--model", "slow", "--batch-tokens", "1", "--progress"]
    with started(*arguments, source=tmp_path / "in") as process:
        assert process.stdout and process.stderr
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert b"Traceback" not in err and b"Error" not in err
    lines = (first + out).splitlines()
    assert len(lines) < 10000 and (first + out).endswith(b"\n")
    assert lines == [b"LINE %d" % i for i in range(len(lines))]


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n" * 200000)
    with started("--model", "words", source=tmp_path / "in") as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"A\n"
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, b"")


def test_the_module_is_the_program() -> None:
    command = [sys.executable, "-m", "decoding", "translate", "--model", "nowhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, input=b"", check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"nowhere" in done.stderr and one_line(done.stderr.decode())


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_plan_prints_the_memory_plan(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_models.reference(name).save_pretrained(tmp_path)
    model = decoding.load(tmp_path, "cpu")
    command = ["plan", "--model", str(tmp_path), "--device", "cpu"]
    assert main(command) == 0
    source = 64 if model.spec.encoder else 0
    limits = decoding.Limits(batch=1, beams=1, source=source, prompt=1, target=64)
    assert capsys.readouterr().out == f"{model.memory_plan(limits)}\n"
    sizes = "--batch 3 --beams 2 --prompt 4 --target 9".split()
    assert main([*command, *sizes, *(["--source", "7"] if source else [])]) == 0
    limits = decoding.Limits(batch=3, beams=2, source=7 if source else 0, prompt=4, target=9)
    assert capsys.readouterr().out == f"{model.memory_plan(limits)}\n"


def test_plan_without_an_encoder_has_no_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_models.reference("gpt2").save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["plan", "--model", str(tmp_path), "--source", "7"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and one_line(err) and "leave --source out" in err


def test_demo_shows_source_translation_and_score(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = SimpleNamespace(summary="1 MB in 3 buffers")
    model = stand_in.StandIn()
    monkeypatch.setattr(model, "memory_plan", lambda: plan)
    monkeypatch.setattr(decoding, "load", lambda folder: model)
    demo.main()
    *blocks, last = capsys.readouterr().out.split("\n\n")
    sentences = (ROOT / "models/demo/sentences.de.txt").read_text(encoding="utf-8")
    assert [block.split("\n")[0] for block in blocks] == sentences.splitlines()
    for block in blocks:
        source, translation, score = block.split("\n")
        assert translation == f"  {source.upper()}"
        assert score == f"  score {-0.01 * (len(source.split()) + 1):.3f}"
    assert "tokens/s" in last and last.endswith("memory: 1 MB in 3 buffers\n")


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert not left.value.code
    assert {"translate", "plan"} <= set(capsys.readouterr().out.split())
