"""The CPU kernels for aarch64, cross-compiled and run under QEMU as processors of three kinds.

    python -m tests.aarch64             compares every answer with those of answers.json
    python -m tests.aarch64 --record    writes those anew: what x86-64 finds, compiled natively

answers.json holds a hash for each answer of the portable kernels on x86-64. aarch64's portable
kernels find the same bits, and so do NEON's, but where a * b + c is rounded once: there `fused` has
the hash, of the portable kernels on x86-64 with FMA. What DotProd and I8MM multiply are integers,
whose sums are exact. `bfloat16_model` has products where the machine multiplies bfloat16: see
bfloat16_dot.h. NaN counts as equal to NaN.

It needs aarch64-linux-gnu-g++ and qemu-aarch64; --record needs g++ on x86-64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import runpy
import shutil
import subprocess
import time
from pathlib import Path
from typing import TypeAlias

import ninja

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "build/aarch64"
FOLDER = Path(__file__).parent
ANSWERS = FOLDER / "answers.json"
SETUP = runpy.run_path(str(ROOT / "setup.py"))  # how the library is built
HEADER: Path = SETUP["HEADER"]
Answers: TypeAlias = dict[str, dict[str, str]]  # instruction set -> case -> hash

# What QEMU is, and the instruction sets that there must be.
PROCESSORS = {
    "cortex-a53": ["neon", "portable"],
    "neoverse-n1": ["neon_dotprod", "neon", "portable"],
    "max": ["neon_bf16", "neon_i8mm", "neon_dotprod", "neon", "portable"],
}
# What the answers of an instruction set are, of those recorded: the last one that there is.
EXPECTED = {
    "portable": ["portable"],
    "bfloat16_model": ["bfloat16_model"],
    "neon": ["portable", "fused"],
    "neon_dotprod": ["portable", "fused"],
    "neon_i8mm": ["portable", "fused"],
    "neon_bf16": ["portable", "fused", "bfloat16_model"],
}


def ninja_file(compiler: str, isas: dict[str, str], link: str) -> str:
    """Compiles the kernels for each instruction set, and the program. isas: flags of each."""
    flags = SETUP["FLAGS"]
    cache = "ccache " if shutil.which("ccache") else ""
    command = f'{cache}{compiler} -MMD -MF $out.d {flags} -O1 -I"{ROOT}/csrc" -I"{ROOT}" $options'
    lines = [
        "rule precompile",
        f"  command = {command} -x c++-header $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule compile",
        f"  command = {command} -fpch-preprocess -include $header -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {compiler} -pthread {link} -o $out $in",
    ]
    tools = set((ROOT / "csrc/kernels/cpu").glob("*.cc"))
    kernels = set((ROOT / "csrc/kernels").rglob("cpu/*.cc")) - tools
    program = tools | set(FOLDER.glob("*.cc"))
    objects = []
    for number, (isa, options) in enumerate(isas.items()):
        options = f"  options = -DDECODING_ISA={isa} {options}"
        header = f"{isa}/{HEADER.name}"
        lines += [f"build {header}.gch: precompile {HEADER}", options]
        # The largest file comes first, that none is waited for at the end.
        sources = kernels | program if number == 0 else kernels
        for source in sorted(sources, key=lambda path: (-path.stat().st_size, path)):
            path = f"{isa}/{'.'.join(source.relative_to(ROOT).parts)}.o"
            objects.append(path)
            lines += [f"build {path}: compile {source} | {header}.gch", options]
            lines += [f"  header = {header}"]
    return "\n".join([*lines, f"build kernels: link {' '.join(objects)}", ""])


def build(folder: Path, compiler: str, isas: dict[str, str], link: str = "") -> Path:
    """The program that prints answers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.ninja").write_text(ninja_file(compiler, isas, link))
    command: list[str | Path] = [Path(ninja.BIN_DIR) / "ninja", "--quiet", "-C", folder]
    environment = SETUP["CCACHE"] | os.environ
    if subprocess.run(command, env=environment).returncode:
        raise SystemExit("aarch64: the kernels could not be compiled: see the first message above")
    return folder / "kernels"


def answers_of(*command: str | Path) -> Answers:
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        raise SystemExit(f"aarch64: {command} failed with exit code {ran.returncode}")
    found: Answers = {}
    for line in ran.stdout.splitlines():
        isa, case, answer = line.split("\t")
        if found.setdefault(isa, {}).setdefault(case, answer) != answer:
            raise SystemExit(f"aarch64: two answers of {isa} have the name {case}")
    return found


def record() -> None:
    """Writes what this machine's portable kernels find, without and with FMA."""
    if platform.machine() != "x86_64":
        raise SystemExit("aarch64: answers are recorded on x86-64, which aarch64 is compared with")
    only = "-DDECODING_ONLY_ISA=portable"
    found = answers_of(build(BUILD / "x86-64", "g++", {"portable": only}))
    fused = answers_of(build(BUILD / "x86-64-fma", "g++", {"portable": f"{only} -mfma"}))
    portable = found["portable"]
    found["fused"] = {
        case: answer for case, answer in fused["portable"].items() if answer != portable[case]
    }
    ANSWERS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"aarch64: {len(portable)} answers recorded")


def differences(processor: str, found: Answers, recorded: Answers) -> list[str]:
    """One sentence for each answer that is not what has been recorded."""
    sets = sorted(found.keys() - {"bfloat16_model"})
    if sets != sorted(PROCESSORS[processor]):
        return [f"{processor}: found {sets}, not {PROCESSORS[processor]}"]
    wrong = []
    for isa, answers in found.items():
        expected: dict[str, str] = {}
        for name in EXPECTED[isa]:
            expected |= recorded[name]
        for case in sorted(expected.keys() | answers.keys()):
            if expected.get(case) != answers.get(case):
                wrong.append(f"{processor}: {isa}: {case} differs from {EXPECTED[isa][-1]}")
    return wrong


def check() -> None:
    for tool, package in (
        ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
        ("qemu-aarch64", "qemu-user"),
    ):
        if shutil.which(tool) is None:
            raise SystemExit(f"aarch64: {tool} is not there: install Debian's {package}")
    began = time.perf_counter()
    isas = SETUP["ISAS"]["aarch64"]
    program = build(BUILD / "aarch64", "aarch64-linux-gnu-g++", isas, "-static")
    print(f"aarch64: compiled in {time.perf_counter() - began:.0f} s", flush=True)
    recorded = json.loads(ANSWERS.read_text())
    wrong = []
    for processor, sets in PROCESSORS.items():
        began = time.perf_counter()
        found = answers_of("qemu-aarch64", "-cpu", processor, program)
        now = differences(processor, found, recorded)
        wrong += now
        seconds = time.perf_counter() - began
        print(f"aarch64: {processor}: {', '.join(sets)}: {len(now)} differences, {seconds:.0f} s")
    if wrong:
        raise SystemExit("\n".join(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.aarch64", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    if args.record:
        record()
    else:
        check()


if __name__ == "__main__":
    main()
