"""Builds csrc/ into decoding/_C through ninja. Everything else is in pyproject.toml.

Where it is built in place, there is decoding/_kernels too: each kernel alone, for tests and
benchmarks.

torch is not needed to build: the engine reads tensors through their pointers.

The CUDA engine is built where nvcc is found: in CUDA_HOME, on the PATH, or in the packages of the
extra `cuda`. DECODING_CUDA_ARCHS names its targets, by default "80 90" (machine code for Ampere and
Hopper, which also runs on their kin, and code that newer GPUs compile when they load it); empty, it
leaves CUDA out.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import ninja
import pybind11
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
# psabi: vectors wider than the registers are passed inside one file only.
FLAGS = (
    "-std=c++20 -O3 -fPIC -fvisibility=hidden -ffp-contract=fast -Wall -Wextra -Wno-psabi -pthread"
)
# Each kernel file is compiled once per instruction set; which one runs is chosen at run time.
ISAS = {
    "portable": "",
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512",
}

NVCC_FLAGS = "-std=c++20 -O3 -Xcompiler=-fPIC,-fvisibility=hidden -Xcudafe=--diag_suppress=186"

# Compared with the sources by decoding/engine/build_check.py.
HASH = """namespace decoding {{
extern const char* const kSourcesHash = "{}";
extern const char* const kCudaArchs = "{}";
}}
"""


def quoted(path: Path) -> str:
    """The path as ninja writes it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def object_name(source: Path) -> str:
    """Names an object after its source: kernels.rows.cpu.norm.cc."""
    return ".".join(source.relative_to(ROOT / "csrc").parts)


@dataclass(frozen=True)
class Cuda:
    """A CUDA compiler, and what it builds for."""

    nvcc: Path
    archs: list[str]  # "80", "90"

    @classmethod
    def find(cls) -> Cuda | None:
        archs = os.environ.get("DECODING_CUDA_ARCHS", "80 90").replace(";", " ").split()
        packages = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvcc"))
        found = [
            Path(os.environ.get("CUDA_HOME", "/nowhere")) / "bin/nvcc",
            Path(shutil.which("nvcc") or "/nowhere"),
            *packages,
        ]
        compilers = [path for path in found if path.is_file()]
        return cls(compilers[0], archs) if compilers and archs else None

    @cached_property
    def root(self) -> Path:
        """The toolkit's folder: nvcc itself knows, wherever it was called from."""
        command = [self.nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True).stderr
        top = re.search(r"^#\$ TOP=(.*)$", said, re.MULTILINE)
        if top is None:
            raise SystemExit(f"{self.nvcc} does not work as a CUDA compiler:\n{said}")
        return Path(top[1]).resolve()

    def folder(self, holding: str) -> Path:
        """The folder of the toolkit that holds a file."""
        for folder in ("include", "targets/*/include", "lib64", "lib", "targets/*/lib"):
            for path in sorted(self.root.glob(f"{folder}/{holding}")):
                return path.parent
        raise SystemExit(
            f"{self.nvcc} is there but {holding} is not: install the whole CUDA toolkit (or "
            "`pip install .[cuda]`), or build without CUDA by setting DECODING_CUDA_ARCHS= "
        )

    @property
    def targets(self) -> str:
        """Machine code for each target, and what newer GPUs compile for the last one."""
        # Instructions that only Hopper has ask for a target of its own.
        exact = ["90a" if arch == "90" else arch for arch in self.archs]
        real = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in exact]
        newest = self.archs[-1]
        return " ".join([*real, f"-gencode=arch=compute_{newest},code=compute_{newest}"])


def in_module(source: Path, module: str) -> bool:
    """Whether a source is linked into decoding._C or decoding._kernels; most are into both."""
    bindings = ROOT / "csrc/bindings"
    if module == "_C":
        return bindings / "testing" not in source.parents
    return source != bindings / "module.cc"


def ninja_file(targets: list[Path], build: Path, cuda: Cuda | None) -> str:
    """The whole build as ninja's text: one object per source (and instruction set), one link for
    each target: an extension module, by its file name."""
    includes = [ROOT / "csrc", pybind11.get_include(), sysconfig.get_paths()["include"]]
    libraries = ""
    if cuda is not None:
        includes.append(cuda.folder("cuda_runtime_api.h"))
        # Its own copy of CUDA's runtime, unseen by torch's.
        folder = cuda.folder("libcudart_static.a")
        libraries = f'-Wl,--exclude-libs,ALL -L"{folder}" -lcudart_static -ldl -lrt'
    lines = [
        f"cxx = {os.environ.get('CXX', 'g++')}",
        f"flags = {FLAGS} " + " ".join(f'-I"{path}"' for path in includes),
        f"libraries = {libraries}",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags $isa -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $out",
        "rule link",
        "  command = $cxx -shared -pthread -o $out $in $libraries",
        "  description = $out",
    ]
    if cuda is not None:
        lines[1] += " -DDECODING_CUDA"
        lines += [
            "rule nvcc",
            f'  command = "{cuda.nvcc}" -MD -MF $out.d {NVCC_FLAGS} {cuda.targets}'
            f' -I"{ROOT / "csrc"}" -c $in -o $out',
            "  depfile = $out.d",
            "  deps = gcc",
            "  description = $out",
        ]
    isas = ISAS if platform.machine() in ("x86_64", "AMD64") else {"portable": ""}
    objects = [(-1, build / "hash.o", build / "hash.cc")]  # instruction set, object, source
    for source in sorted((ROOT / "csrc").rglob("*.cu")) if cuda else []:
        objects.append((-1, build / f"{object_name(source)}.o", source))
    for source in sorted((ROOT / "csrc").rglob("*.cc")):
        if cuda is None and "cuda" in (source.parent.name, source.stem):
            continue
        per_isa = (
            source.parent.name == "cpu" and "kernels" in source.parts and source.stem != "team"
        )
        for isa in isas if per_isa else [""]:
            name = object_name(source) + f".{isa}" * bool(isa)
            objects.append((list(ISAS).index(isa) if isa else -1, build / f"{name}.o", source))
    modules = [target.name.split(".")[0] for target in targets]
    objects = [entry for entry in objects if any(in_module(entry[2], name) for name in modules)]
    for isa, path, source in objects:
        rule = "nvcc" if source.suffix == ".cu" else "compile"
        lines.append(f"build {quoted(path)}: {rule} {quoted(source)}")
        if isa >= 0:
            name = list(ISAS)[isa]
            lines.append(f"  isa = -DDECODING_ISA={name} {ISAS[name]}")
    # Portable objects first: where two objects hold the same inline function, the linker keeps the
    # first, which every machine can run.
    for target, module in zip(targets, modules, strict=True):
        linked = [quoted(path) for _, path, source in sorted(objects) if in_module(source, module)]
        lines.append(f"build {quoted(target)}: link {' '.join(linked)}")
    return "\n".join([*lines, ""])


class NinjaBuild(build_ext):
    """build_ext that hands the work to ninja, so that only what changed is compiled again."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if not (self.inplace or self.editable_mode):  # a wheel
            self.extensions = [ext for ext in self.extensions if ext.name == "decoding._C"]

    def build_extensions(self) -> None:
        targets = [Path(self.get_ext_fullpath(ext.name)).resolve() for ext in self.extensions]
        build = (ROOT / "build" / f"{sys.implementation.cache_tag}-{platform.machine()}").resolve()
        build.mkdir(parents=True, exist_ok=True)
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        # Not an import: the package needs torch, which an isolated build does not have.
        sources_hash = runpy.run_path(str(ROOT / "decoding/engine/build_check.py"))["sources_hash"]
        cuda = Cuda.find()
        archs = " ".join(cuda.archs) if cuda else ""
        (build / "build.ninja").write_text(ninja_file(targets, build, cuda))
        (build / "hash.cc").write_text(HASH.format(sources_hash(ROOT / "csrc"), archs))
        subprocess.check_call([Path(ninja.BIN_DIR) / "ninja", "-C", str(build)])


setup(
    packages=find_packages(include=["decoding", "decoding.*"]),
    package_data={
        "decoding": ["py.typed", "_C.pyi"],
        "decoding.compare": ["roofline.c"],
        "decoding.compare.report": ["page.html"],
    },
    exclude_package_data={"decoding": ["_kernels.pyi"]},
    ext_modules=[Extension("decoding._C", []), Extension("decoding._kernels", [])],
    cmdclass={"build_ext": NinjaBuild},
)
