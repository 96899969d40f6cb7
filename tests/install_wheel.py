"""Installs a wheel where there is no compiler, and uses it: does it work, and how soon?

    python -m tests.install_wheel dist/decoding-0.1.0-cp312-*.whl
    python -m tests.install_wheel dist/decoding-0.1.0-cp312-*.whl --torch "torch==2.10.*"

Its Python must be the wheel's. It makes a virtual environment in a temporary folder, installs torch
there, then the wheel with what else it needs, and translates the sentences of the demo model. The
PATH holds the environment's programs alone, and pip takes wheels alone, so that nothing can be
compiled. Installing the wheel and the first translation may take --limit seconds together: torch is
not counted. Afterwards the tests of what meets torch run against the installed files: tensors,
models of transformers, modules for training. pip's own settings, as PIP_EXTRA_INDEX_URL, hold.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST = ("Guten Morgen, hast du gut geschlafen?", "Good morning, did you sleep well?")
TESTS = (
    "tests/generation/test_outputs.py",
    "tests/models/test_demo_model.py",
    "tests/training/test_nn_operators.py",
)
BUT = "not compiled"  # torch.compile itself needs a compiler
# What the tests import beside the extra `compare`.
TEST_PACKAGES = ("hypothesis", "pytest", "pytest-timeout")


class Environment:
    """A virtual environment, and what runs in it: without a compiler, from an empty folder."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=True)
        self.programs = folder / "venv/bin"
        self.work = folder / "work"
        self.work.mkdir()

    def run(self, *command: str, text: str = "") -> str:
        """The program's output. Raises CalledProcessError where it fails."""
        hidden = {"PATH": str(self.programs), "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(
            [str(self.programs / command[0]), *command[1:]],
            cwd=self.work,
            env={**os.environ, **hidden},
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    def install(self, *packages: str) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", *packages)


def first_translation(environment: Environment, wheel: Path, torch: str) -> float:
    """Seconds to install the wheel and to translate. Raises ValueError for another translation."""
    environment.install(torch)
    began = time.perf_counter()
    environment.install(str(wheel.resolve()))
    german, english = FIRST
    demo = str(ROOT / "models/demo")
    given = environment.run("decoding", "translate", "--model", demo, text=german + "\n")
    seconds = time.perf_counter() - began
    if given != english + "\n":
        raise ValueError(f"the first translation is {given!r}, not {english!r}")
    return seconds


def run_tests(environment: Environment, wheel: Path) -> None:
    """Tests of the checkout, without its sources beside them."""
    for folder in ("tests", "models/demo"):
        shutil.copytree(ROOT / folder, environment.work / folder)
    shutil.copy(ROOT / "pyproject.toml", environment.work)
    environment.install(f"{wheel.resolve()}[compare]", *TEST_PACKAGES)
    print(environment.run("python", "-m", "pytest", *TESTS, "-k", BUT), end="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--torch", default="torch", help="as pip takes it (default: the newest)")
    parser.add_argument("--limit", type=float, default=15.0, help="seconds (default: 15)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        seconds = first_translation(environment, args.wheel, args.torch)
        version = environment.run("python", "-c", "import torch; print(torch.__version__)").strip()
        print(f"{args.wheel.name}, torch {version}: first translation after {seconds:.1f} s")
        if seconds > args.limit:
            print(f"that is more than {args.limit:g} s", file=sys.stderr)
            return 1
        run_tests(environment, args.wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
