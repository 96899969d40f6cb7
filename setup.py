"""Builds csrc/ into decoding/_C through ninja. Everything else is in pyproject.toml.

torch is not needed to build: the engine reads tensors through their pointers.
"""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import ninja
import pybind11
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
KERNELS = ROOT / "csrc/kernels/cpu"
FLAGS = "-std=c++20 -O3 -fPIC -fvisibility=hidden -ffp-contract=fast -Wall -Wextra -pthread"
# Each kernel file is compiled once per instruction set; which one runs is chosen at run time.
ISAS = {
    "portable": "",
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512",
}

# Tells an engine that was built from these sources from an older one: decoding/sources.py.
HASH = 'namespace decoding {{\nextern const char* const kSourcesHash = "{}";\n}}\n'


def quoted(path: Path) -> str:
    """The path as ninja writes it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def ninja_file(target: Path, build: Path) -> str:
    """The whole build as ninja's text: one object per source (and instruction set), one link."""
    includes = [ROOT / "csrc", pybind11.get_include(), sysconfig.get_paths()["include"]]
    lines = [
        f"cxx = {os.environ.get('CXX', 'g++')}",
        f"flags = {FLAGS} " + " ".join(f'-I"{path}"' for path in includes),
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags $isa -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $out",
        "rule link",
        "  command = $cxx -shared -pthread -o $out $in",
    ]
    isas = ISAS if platform.machine() in ("x86_64", "AMD64") else {"portable": ""}
    objects = [(-1, build / "hash.o")]
    lines.append(f"build {quoted(build / 'hash.o')}: compile {quoted(build / 'hash.cc')}")
    for source in sorted((ROOT / "csrc").rglob("*.cc")):
        per_isa = source.parent == KERNELS and source.stem != "team"
        for isa in isas if per_isa else [""]:
            name = f"{source.parent.name}.{source.stem}" + f".{isa}" * bool(isa)
            objects.append((list(ISAS).index(isa) if isa else -1, build / f"{name}.o"))
            lines.append(f"build {quoted(objects[-1][1])}: compile {quoted(source)}")
            if isa:
                lines.append(f"  isa = -DDECODING_ISA={isa} {ISAS[isa]}")
    # Portable objects first: where two objects hold the same inline function, the linker keeps the
    # first, which every machine can run.
    ordered = [quoted(path) for _, path in sorted(objects)]
    lines.append(f"build {quoted(target)}: link {' '.join(ordered)}")
    return "\n".join([*lines, f"default {quoted(target)}", ""])


class NinjaBuild(build_ext):
    """build_ext that hands the work to ninja, so that only what changed is compiled again."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = (ROOT / "build" / f"{sys.implementation.cache_tag}-{platform.machine()}").resolve()
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not an import: the package needs torch, which an isolated build does not have.
        sources_hash = runpy.run_path(str(ROOT / "decoding/sources.py"))["sources_hash"]
        (build / "build.ninja").write_text(ninja_file(target, build))
        (build / "hash.cc").write_text(HASH.format(sources_hash(ROOT / "csrc")))
        subprocess.check_call([Path(ninja.BIN_DIR) / "ninja", "-C", str(build)])


setup(
    packages=find_packages(include=["decoding", "decoding.*"]),
    package_data={"decoding": ["py.typed", "_C.pyi"], "decoding.models.demo": ["*"]},
    ext_modules=[Extension("decoding._C", [])],
    cmdclass={"build_ext": NinjaBuild},
)
