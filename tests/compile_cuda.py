"""Compiles all of the CUDA engine on a machine without a GPU.

    python -m tests.compile_cuda

nvcc stops at PTX, by when it has read what the host does, too; the C++ compiler reads what is C++.
That takes less than half the time of a build, and finds what a build does, but for what ptxas and
the linker say. nvcc is looked for where setup.py does.
"""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import ninja

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/ptx"
ARCH = "90a"
PTX_FLAGS = f"-ptx -arch=compute_{ARCH} --Ofast-compile=max --Werror all-warnings"


def ninja_file(setup: dict[str, Any]) -> str:
    """setup: what setup.py defines."""
    cuda, include = setup["Cuda"].find(), f'-I"{ROOT / "csrc"}"'
    headers = cuda.folder("cuda_runtime_api.h")
    cxx_flags = f'{setup["FLAGS"]} -Werror -DDECODING_CUDA -I"{headers}" {include} -fsyntax-only'
    nvcc_flags = f"{setup['NVCC_FLAGS']} {PTX_FLAGS} {include}"
    dependencies = ["  depfile = $out.d", "  deps = gcc", "  description = $in"]
    lines = [
        "rule nvcc",
        f'  command = "{cuda.nvcc}" -MD -MF $out.d {nvcc_flags} $options $in -o $out',
        *dependencies,
        "rule compile",
        f"  command = g++ -MMD -MF $out.d -MT $out {cxx_flags} $options $in && touch $out",
        *dependencies,
    ]
    for part in setup["objects"](BUILD, {"_C", "_kernels"}, with_cuda=True):
        if setup["is_cuda"](part.source) or setup["BINDINGS"] in part.source.parents:
            part.write_file()
            path, source = map(setup["quoted"], (part.path, part.file))
            lines += [f"build {path}: {part.rule} {source}", f"  options = {part.options}"]
    return "\n".join([*lines, ""])


def main() -> None:
    os.environ["DECODING_CUDA_ARCHS"] = ARCH
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "build.ninja").write_text(ninja_file(runpy.run_path(str(ROOT / "setup.py"))))
    command: list[str | Path] = [Path(ninja.BIN_DIR) / "ninja", "--quiet", "-C", BUILD]
    if subprocess.run(command).returncode:
        raise SystemExit("the CUDA engine does not compile: see the first message above")


if __name__ == "__main__":
    main()
