"""The program: how it ends, and its commands and options by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import decoding
from decoding.cli.main import COMMANDS, interruptible
from decoding.cli.reading import opened_input
from examples import demo
from tests.cli.program import Program, one_line
from tests.support import stand_in
from tests.text.trained_tokenizers import text_generation_directory

ROOT = Path(decoding.__file__).parent.parent


def started(*arguments: str, source: Path | int) -> subprocess.Popen[bytes]:
    """The program as a process of its own, with the stand-in."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.stand_in", "translate", *arguments],
        cwd=ROOT,
        stdin=source if isinstance(source, int) else source.open("rb"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_who_waits_for_an_answer_gets_it() -> None:
    """Lines in a pipe are answered at once where no other is there, also while one is half
    written."""
    with started("--model", "words", "--quiet", source=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        for lines in (b"a\n", b"b b\nc\nhalf", b" a line\n"):
            process.stdin.write(lines)
            process.stdin.flush()
            for _ in range(lines.count(b"\n")):
                assert process.stdout.readline()
        process.stdin.close()
        assert process.stdout.read() == process.stderr.read() == b""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("library", ["_multiarray_umath", "decoding/_C"])
def test_ctrl_c_before_the_library_is_there(library: str) -> None:
    """While Python imports what is behind `library`."""
    command = [sys.executable, "-m", "decoding", "translate", "--model", "models/demo"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and library not in maps.read_text():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (-signal.SIGINT, b"")


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


def test_ctrl_c_waits_where_it_would_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a finalizer, and in a module that is imported, which may swallow it."""
    (tmp_path / "importing.py").write_text(
        "import signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    whole = True\n"
        "except KeyboardInterrupt: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finalized = []

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        finalized.append(True)

    def finalize() -> None:
        weakref.finalize({1}, interrupt)  # a set that goes at once

    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        for lose in (finalize, lambda: import_module("importing")):
            with pytest.raises(KeyboardInterrupt), interruptible():
                lose()
                time.sleep(60)
            with pytest.raises(KeyboardInterrupt), interruptible():  # at its very end
                sys.modules.pop("importing", None)
                lose()
    finally:
        signal.signal(signal.SIGINT, before)
    assert finalized == [True] * 2 and import_module("importing").whole


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n" * 200000)
    with started("--model", "words", source=tmp_path / "in") as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"A\n"
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, b"")


LINES = b"".join(b"line %d\n" % i for i in range(2000))


def check_first_lines(written: bytes) -> None:
    """Whole lines, in order, some but not all."""
    count = written.count(b"\n")
    assert 0 < count < 2000 and LINES.upper().startswith(written) and written.endswith(b"\n")


def wait_for_lines(path: Path) -> None:
    while path.stat().st_size == 0:
        time.sleep(0.01)


def test_a_killed_program_leaves_finished_lines(tmp_path: Path) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_bytes(LINES)
    sink.touch()
    arguments = ["--model", "slow", "--batch-tokens", "40", "--output", str(sink)]
    with started(*arguments, source=source) as process:
        wait_for_lines(sink)
        process.kill()
    check_first_lines(sink.read_bytes())


def test_a_killed_reader_of_the_output_has_finished_lines(tmp_path: Path) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_bytes(LINES)
    with sink.open("wb") as file:
        with started("--model", "slow", "--batch-tokens", "40", source=source) as process:
            with subprocess.Popen(["cat"], stdin=process.stdout, stdout=file) as reader:
                assert process.stdout
                process.stdout.close()
                wait_for_lines(sink)
                reader.kill()
    check_first_lines(sink.read_bytes())
    assert process.returncode == 141


def test_all_lines_of_a_killed_writer_of_the_input_are_answered() -> None:
    """And what it wrote of the last one."""
    code = f"import sys, time; sys.stdout.write({LINES.decode()!r} + 'half'); sys.stdout.flush()"
    command = [sys.executable, "-c", code + "; time.sleep(99)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        with started("--model", "words", source=writer.stdout.fileno()) as process:
            assert process.stdout
            first = process.stdout.readline()
            writer.kill()
            written = first + process.stdout.read()
    assert (process.returncode, written) == (0, LINES.upper() + b"HALF\n")


@pytest.mark.parametrize("words", [["--output", "/dev/full"], []])
def test_a_full_disk_is_named(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n")
    full = "/dev/full" if words else "standard output"
    with (tmp_path / "in").open("rb") as source, open("/dev/full", "wb") as sink:
        command = [sys.executable, "-m", "tests.support.stand_in", "translate", "--model", "words"]
        done = subprocess.run(
            [*command, *words], cwd=ROOT, stdin=source, stdout=sink, stderr=subprocess.PIPE
        )
    said = f"decoding: error: {full}: No space left on device\n"
    assert (done.returncode, done.stderr.decode()) == (2, said)


@pytest.mark.parametrize("command", ["translate", "score --source models/demo/sentences.de.txt"])
def test_a_shells_input_is_not_overwritten(command: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"a\n")
    words = [*command.split(), "--model", "words", "--output", str(text)]
    with text.open("rb") as source:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.stand_in", *words],
            cwd=ROOT,
            stdin=source,
            capture_output=True,
        )
    said = f"decoding: error: {text} is the input too: write to another file\n"
    assert (done.returncode, done.stderr.decode()) == (2, said)
    assert text.read_bytes() == b"a\n"


@pytest.mark.parametrize("words", [[], ["--progress"]])
def test_a_named_pipe_is_opened_once(words: list[str], tmp_path: Path) -> None:
    """Its writer, which waits for a reader, would lose what it writes to one that looks."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = started("--model", "words", *words, str(pipe), source=subprocess.DEVNULL)
    with process:
        try:
            pipe.write_bytes(LINES)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, LINES.upper())


def test_closed_streams_are_named(program: Program) -> None:
    program.monkeypatch.setattr(sys, "stdout", None)
    model = stand_in.StandIn()
    status, _, err = program("translate", "-m", "any", source="a", model=model)
    assert status == 2 and "standard output is closed: write to a file with --output" in err
    with pytest.raises(ValueError, match="standard input is closed: name a file"):
        program.monkeypatch.setattr(sys, "stdin", None)
        opened_input("-")


def test_the_module_is_the_program() -> None:
    command = [sys.executable, "-m", "decoding", "translate", "--model", "nowhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, input=b"", check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"nowhere" in done.stderr and one_line(done.stderr.decode())


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


@pytest.mark.parametrize("words", [["--help"], ["translate", "--help"], ["--version"]])
def test_help(program: Program, words: list[str]) -> None:
    status, out, err = program(*words)
    assert (status, err) == (0, "")
    if words == ["--version"]:
        assert out == f"{decoding.__version__}\n"
    else:
        assert {"--help": "translate", "translate": "--num-beams"}[words[0]] in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "decoding: error: say what to do: one of translate,"),
        (
            "trnslate",
            "there is no command 'trnslate'; did you mean translate? (see decoding --help)",
        ),
        ("perplexity", "there is no command 'perplexity'; did you mean score? (see"),
        ("xyz", "there is no command 'xyz' (see decoding --help)"),
        ("--model x translate", "the command comes before its options, not --model"),
        (
            "translate --num_beam 4",
            "there is no argument --num-beam; did you mean --num-beams? (see",
        ),
        (
            "translate --lenpen=1",
            "there is no argument --lenpen; did you mean --length-penalty? (see",
        ),
        ("translate --num_return_sequences 2", "; did you mean --n-best?"),
        ("translate --what x", "there is no argument --what (see decoding translate --help)"),
        ("translate -x", "translate: error: "),
        ("score --modle x", "did you mean --model? (see decoding score --help)"),
        ("plan --model", "argument -m/--model: expected one argument (see decoding plan --help)"),
    ],
)
def test_misspelt_names(program: Program, words: str, says: str) -> None:
    status, out, err = program(*words.split())
    assert (status, out) == (2, "")
    assert one_line(err) and says in err


HEAVY = {"torch", "numpy", "decoding._C", "decoding.models.registry"}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--help",
        "--version",
        "trnslate",
        *(f"{command} --help" for command in COMMANDS),
        *(f"{command} --beems 4" for command in COMMANDS),
    ],
)
def test_help_and_mistakes_import_nothing_heavy(words: str) -> None:
    """They would wait for it: torch alone takes more than a second."""
    command = [sys.executable, "-X", "importtime", "-m", "decoding", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == (0 if words.endswith(("--help", "--version")) else 2)
    assert "decoding.cli.main" in imported and not HEAVY & imported


DEMO = "--model models/demo models/demo/sentences.de.txt"
GENERATE = "--model {} --prompt some --max-new-tokens 9"


@pytest.mark.parametrize(
    "words",
    [
        f"translate {DEMO}",
        f"translate {DEMO} --num-beams 4 --n-best 2 --alignments --coverage-penalty 0.2",
        f"translate {DEMO} --do-sample --scores --dtype bfloat16 --stop-strings .",
        f"generate {GENERATE}",
        f"generate {GENERATE} --do-sample --n-best 2 --dtype bfloat16",
        f"generate {GENERATE} --num-beams 3 --stream",
        f"score {DEMO} --source models/demo/sentences.de.txt",
        "plan --model models/demo",
    ],
)
def test_commands_run_without_torch(words: str, device: str, tmp_path: Path) -> None:
    """It takes more than a second to import, and most of the memory of a small model."""
    folder = text_generation_directory("llama", tmp_path) if "{}" in words else None
    run_without_torch([*words.format(folder).split(), "--device", device])


def test_models_are_converted_without_torch(tmp_path: Path) -> None:
    folder = text_generation_directory("llama", tmp_path)
    run_without_torch(f"convert --model {folder} --dtype int8 --output {folder}/int8".split())
    run_without_torch(["generate", *GENERATE.format(folder / "int8").split()])


def run_without_torch(words: list[str]) -> None:
    code = f"import sys; from decoding.cli.main import main; main({words}); "
    command = [sys.executable, "-c", code + "assert 'torch' not in sys.modules"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr


def test_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, decoding; dir(decoding); sys.exit(str({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "set()\n"
