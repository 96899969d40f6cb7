"""README and the pages of docs/: their code runs as pasted, and what they name exists.

A block marked `python` or `sh` is run, in the order of its page, in a folder where `models`,
`tests` and `examples` are those of the checkout. What must not run here (an installation, a GPU) is
marked `text`. A comment behind a `print` is what it prints. Commands of `decoding` run in this
process, which has imported torch already; all others run in a shell.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from decoding.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
SITE = sorted((ROOT / "docs").rglob("*.md"))
PROSE = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *(ROOT / f"{folder}/README.md" for folder in ("csrc", "benchmarks", "examples")),
    *SITE,
]
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"python", "sh", "text", "{toctree}", "{image}", "{include}", "{eval-rst}"}
FOLDERS = r"(?:csrc|decoding|models|tests|benchmarks|docs|examples)"


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code(path: Path) -> list[tuple[str, str]]:
    """The blocks of a page: language and text."""
    return BLOCK.findall(path.read_text("utf-8"))


PAGES = [
    path
    for path in (ROOT / "README.md", *SITE)
    if any(language in ("python", "sh") for language, _ in code(path))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the checkout's models, tests and examples, which is the current one."""
    for name in ("models", "tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_runs_as_pasted(page: Path, folder: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for language, text in code(page):
        if language == "python":
            run_python(text, names)
        elif language == "sh":
            for command in text.replace("\\\n", " ").splitlines():
                run_command(command)


def run_python(text: str, names: dict[str, object]) -> None:
    """Statement by statement, each `print` against the comment behind it."""
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and token.line.strip() != token.string
    }
    for statement in ast.parse(text).body:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), "<block>", "exec"), names)
        assert statement.end_lineno
        said = comments.get(statement.end_lineno)
        if said and ast.unparse(statement).startswith("print("):
            assert printed.getvalue().strip() == said, ast.unparse(statement)


def run_command(line: str) -> None:
    """A command with redirections by < and >, and a comment."""
    words = shlex.split(line, comments=True)
    if words[:1] != ["decoding"]:
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, timeout=60)
        return
    arguments, files = words[1:], {}
    for sign in "<>":
        if sign in arguments:
            at = arguments.index(sign)
            files[sign] = arguments[at + 1]
            del arguments[at : at + 2]
    with contextlib.ExitStack() as stack:
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        sink = stack.enter_context(open(files.get(">", "/dev/null"), "w", encoding="utf-8"))
        monkeypatch.setattr(sys, "stdout", sink)
        source = stack.enter_context(open(files.get("<", "/dev/null"), encoding="utf-8"))
        monkeypatch.setattr(sys, "stdin", source)
        assert main(arguments) == 0, line


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_pages_name_what_exists(page: Path) -> None:
    """Links within the checkout, and paths in `code`."""
    text = page.read_text("utf-8")
    prose = BLOCK.sub("", text)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert (page.parent / target).exists(), target
    for path in re.findall(rf"`({FOLDERS}/[\w./*-]+)`", prose):
        assert any(ROOT.glob(path.rstrip("/"))), path
    if page.parent.name == "csrc":
        for path in re.findall(r"`((?:core|kernels|engine|bindings)/[\w./*-]+)`", prose):
            assert any(page.parent.glob(path.rstrip("/"))), path


def test_each_promise_has_its_test() -> None:
    """Each row of a table of docs/determinism.md ends with a test that exists."""
    page = (ROOT / "docs/determinism.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    promises = [row for row in rows if not row.startswith("|---") and not row.endswith("| test |")]
    assert len(promises) > 30
    for row in promises:
        found = re.search(r"\| `(tests/[\w/]+\.py)::(\w+)` \|$", row)
        assert found, row
        tree = ast.parse((ROOT / found[1]).read_text("utf-8"))
        assert found[2] in {getattr(each, "name", "") for each in tree.body}, found[0]


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_pages_keep_their_form(page: Path) -> None:
    """Lines of at most 100 columns but for tables; each block of code says what it is."""
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        assert len(line) <= 100 or line.startswith(("|", "  |")), f"line {number}"
    for language, _ in code(page):
        assert language in LANGUAGES


def test_readme_fits_the_first_screen() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    lines = text.splitlines()
    assert len(lines) <= 150 and len(text.split()) <= 1200
    assert sum(line.startswith("|") for line in lines) <= 12
    assert any("<picture>" in line for line in lines[:12])


@pytest.mark.parametrize("command", COMMANDS)
def test_command_line_page_has_every_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    common, *sections = re.split(r"\n## (?=decoding )", page)
    section = next(text for text in sections if text.startswith(f"decoding {command}\n"))
    said = set(re.findall(r"--[a-z][a-z-]+", common + section))
    missing = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - said
    assert not missing
