"""The CPU engine under the compiler's sanitizers; a report is a failure.

    python -m tests.sanitize            all tests of kernels, engine, generation, search, serving
    python -m tests.sanitize --quick    some of them and fewer checks, on AVX2 alone: CI's
    python -m tests.sanitize --quick --only build     what needs no Python but the build's tools
    python -m tests.sanitize --quick --only tests     the rest, afterwards

AddressSanitizer and UndefinedBehaviorSanitizer run below the tests in Python, ThreadSanitizer below
threads.cc, scheduler.cc and ranks.cc, without Python. Both need g++ and x86-64.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SANITIZERS = "address,undefined"
# Without the checks of every pointer, for which compilers take twice as long.
QUICK_SANITIZERS = (
    "address,bool,bounds,builtin,enum,integer-divide-by-zero,nonnull-attribute,return,"
    "returns-nonnull-attribute,shift,signed-integer-overflow,unreachable,vla-bound"
)
TESTS = ("tests/kernels", "tests/engine", "tests/generation", "tests/search", "tests/serving")
# Kernels, whose tests surround what must not be touched, and searches of whole models. These attend
# as well: the tests of attention take as long as all of these.
QUICK = (
    *(f"tests/kernels/{subject}" for subject in ("conv", "linear", "rows", "search")),
    "tests/generation/test_generate.py",
)
# What takes longest of those: searches against plain Python, statistics of draws.
SLOW = ("whole_searches", "any_search", "samples", "draws", "best_of_all")
# Measure malloc, in whose place AddressSanitizer has its own; or are run by other commands.
LEFT_OUT = (
    "tests/engine/test_load_memory.py",
    "tests/engine/test_memory.py::test_trim_gives_back_what_malloc_keeps",
    "tests/generation/test_parity.py",
)
# What runs under ThreadSanitizer, with the sources that it drives.
PROGRAMS = {
    "threads.cc": ["csrc/kernels/cpu/team.cc"],
    "scheduler.cc": ["csrc/engine/scheduler/*.cc", "csrc/engine/search/*.cc"],
    "ranks.cc": [],  # it includes what it drives
}
OPTIONS = {
    # Python and torch keep memory until the process ends.
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # threads.cc forks where other threads run, and starts threads in the child.
    "TSAN_OPTIONS": "die_after_fork=0",
}


def run(title: str, command: Sequence[str | Path], **environment: str) -> None:
    """Runs a command in the project's folder. Raises SystemExit where it fails, or where a
    sanitizer writes a report."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = {name: f"{value}:log_path={folder}/report" for name, value in OPTIONS.items()}
        code = subprocess.run(command, cwd=ROOT, env=os.environ | settings | environment).returncode
        reports = [path.read_text(errors="replace") for path in sorted(Path(folder).iterdir())]
    print("\n".join(reports), end="", file=sys.stderr)
    seconds = time.perf_counter() - began
    print(f"sanitize: {title}: {len(reports)} reports, {seconds:.0f} s", flush=True)
    if code or reports:
        raise SystemExit(f"sanitize: {title} failed with exit code {code}")


def compiler_file(name: str) -> str:
    said = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, check=True)
    return said.stdout.decode().strip()


def check_threads(folder: Path, name: str, patterns: Sequence[str]) -> None:
    """Builds and runs a program of PROGRAMS."""
    program = folder / Path(name).stem
    sources = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    flags = "-std=c++20 -O1 -g1 -fno-omit-frame-pointer -pthread -fsanitize=thread -Icsrc".split()
    compiler: list[str | Path] = ["g++", *flags, ROOT / "tests/sanitize" / name]
    run(f"build of {name}", [*compiler, *sources, "-o", program])
    run(f"ThreadSanitizer, {name}", [program])


def build_engine(isa: str) -> None:
    """For one instruction set, or for all."""
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    kinds = QUICK_SANITIZERS if isa else SANITIZERS
    run("build of the engine", build, DECODING_SANITIZE=kinds, DECODING_ONLY_ISA=isa)


def check_tests(tests: Sequence[str], options: Sequence[str], isa: str) -> None:
    """Runs tests with what build_engine() has built."""
    folder = "-".join(filter(None, ["sanitize", isa]))
    # The sanitizer comes first, and looks for the C++ library's exceptions as it starts.
    libraries = [compiler_file(name) for name in ("libasan.so", "libstdc++.so")]
    left_out = [f"--deselect={name}" for name in LEFT_OUT]
    pytest = [sys.executable, "-m", "pytest", "-p", "tests.sanitize.plugin", "-n", "2"]
    run(
        "AddressSanitizer and UndefinedBehaviorSanitizer, tests",
        [*pytest, "-m", "not gpu", *left_out, *options, *tests],
        LD_PRELOAD=" ".join(libraries),
        SANITIZED=str(ROOT / "build" / folder),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("build", "tests"))
    args = parser.parse_args()
    isa = "avx2" if args.quick else ""
    if args.only != "tests":
        with tempfile.TemporaryDirectory() as folder:
            for name, patterns in PROGRAMS.items():
                check_threads(Path(folder), name, patterns)
        build_engine(isa)
    if args.only != "build":
        quick = ["-k", " and ".join(f"not {name}" for name in SLOW)]
        check_tests(QUICK if args.quick else TESTS, quick if args.quick else [], isa)


if __name__ == "__main__":
    main()
