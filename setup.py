"""Builds csrc/ into decoding/_C through ninja. Everything else is in pyproject.toml.

Where it is built in place, there is decoding/_kernels too: each kernel alone, for tests and
benchmarks.

torch is not needed to build: the engine reads tensors through their pointers.

The CUDA engine is built for the GPUs that nvidia-smi shows, where nvcc is found: in CUDA_HOME, on
the PATH, or in the packages of the extra `cuda`. DECODING_CUDA_ARCHS names other targets: "80 90"
is machine code for Ampere and Hopper, which also runs on their kin, and PTX of the last one, which
newer GPUs compile when they load it; "90a" is for Hopper alone; empty, it leaves CUDA out.

Other settings: CXX, the C++ compiler; NVCC_APPEND_FLAGS, which nvcc reads itself: for wheels
--compress-mode=size, which compresses machine code, too; DECODING_KERNELS=0 leaves
decoding/_kernels out; DECODING_LOCAL_VERSION=cu128 names a wheel's version after the CUDA that it
was compiled with, 0.1.0+cu128. ccache is used where it is found.

DECODING_SANITIZE=address,undefined builds the CPU engine with these sanitizers of the compiler, for
`make sanitize`: into build/sanitize, the modules too, so that the normal build stays as it is.
DECODING_ONLY_ISA=avx2 leaves the other instruction sets out, which is quicker: build/sanitize-avx2.
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
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).parent.resolve()
BINDINGS = ROOT / "csrc/bindings"
GROUPS = min(4, os.cpu_count() or 1)  # files in which the bindings of a module are compiled
# psabi: vectors wider than the registers are passed inside one file only. contract: a * b + c is
# rounded once where fma() asks for it, so that portable answers are the same on every machine.
FLAGS = "-std=c++20 -fPIC -fvisibility=hidden -ffp-contract=off -Wall -Wextra -Wno-psabi -pthread"
SANITIZERS = os.environ.get("DECODING_SANITIZE", "")  # "address,undefined"
OPTIMIZE = "-O3"
if SANITIZERS:  # their reports name functions and lines
    OPTIMIZE = f"-O1 -g1 -fno-omit-frame-pointer -fsanitize={SANITIZERS}"
ONLY_ISA = os.environ.get("DECODING_ONLY_ISA", "")
LOCAL_VERSION = os.environ.get("DECODING_LOCAL_VERSION", "")
# What ccache keeps serves every checkout, and what is precompiled may come from it, too.
CCACHE = {
    "CCACHE_BASEDIR": str(ROOT),
    "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime",
}
# Each kernel file is compiled once per instruction set of the machine; which one runs is chosen at
# run time. NEON needs a name of its own, because all of aarch64 has it, portable code too.
CONTRACT = "-ffp-contract=fast"
ISAS = {
    "x86_64": {
        "portable": "",
        "avx2": f"-mavx2 -mfma -mf16c {CONTRACT}",
        "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512 "
        + CONTRACT,
    },
    "aarch64": {"portable": "", "neon": "-DDECODING_NEON"},
}

HEADER = ROOT / "csrc/kernels/cpu/precompiled.h"  # for each of them

# The CUDA files that take longest are compiled once per type.
ONCE = ("collective", "team")  # of the CPU's tools, which do not compute
TYPES = {
    "float32": "float",
    "float16": "::decoding::cuda::half",
    "bfloat16": "::decoding::cuda::bfloat16",
}
NVCC_FLAGS = "-std=c++20 -O3 -Xcompiler=-fPIC,-fvisibility=hidden -Xcudafe=--diag_suppress=186"

# Compared with the sources by decoding/engine/build_check.py.
HASH = """namespace decoding {{
extern const char* const kSourcesHash = "{}";
extern const char* const kCudaArchs = "{}";
}}
"""


def isas() -> dict[str, str]:
    """The flags of each instruction set of this machine."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return ISAS.get(machine, {"portable": ""})


def quoted(path: Path) -> str:
    """The path as ninja writes it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def write_changed(path: Path, text: str) -> None:
    """Leaves a file alone that holds the text, so that nothing is compiled again for it."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def object_name(source: Path) -> str:
    """Names an object after its source: kernels.rows.cpu.norm.cc."""
    return ".".join(source.relative_to(ROOT / "csrc").parts)


def visible_archs() -> list[str]:
    """The compute capabilities of this machine's GPUs: ["90a"]."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True)
    found = re.findall(r"^(\d+)\.(\d)$", said.stdout, re.MULTILINE)
    return sorted({"90a" if number == ("9", "0") else "".join(number) for number in found})


@dataclass(frozen=True)
class Cuda:
    """A CUDA compiler, and what it builds for."""

    nvcc: Path
    archs: list[str]  # "80", "90"

    @classmethod
    def find(cls) -> Cuda | None:
        asked = os.environ.get("DECODING_CUDA_ARCHS")
        archs = visible_archs() if asked is None else asked.replace(";", " ").split()
        packages = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvcc"))
        found = [
            Path(os.environ.get("CUDA_HOME", "/nowhere")) / "bin/nvcc",
            Path(shutil.which("nvcc") or "/nowhere"),
            *packages,
        ]
        compilers = [path for path in found if path.is_file()]
        if not archs:
            return None
        if not compilers:
            message = f"code for GPUs of {' '.join(archs)} needs nvcc, which is not to be found"
            if asked is None:
                print(f"{message}: building for the CPU alone")
                return None
            raise SystemExit(f"{message}: install the CUDA toolkit or `pip install .[cuda]`")
        return cls(compilers[0], archs)

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
        """Machine code for each target, and what newer GPUs compile for the last one: not that of
        "90a", which no other GPU takes."""
        # Instructions that only Hopper has ask for a target of its own.
        exact = ["90a" if arch == "90" else arch for arch in self.archs]
        real = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in exact]
        newest = self.archs[-1]
        newer = [f"-gencode=arch=compute_{newest},code=compute_{newest}"] * newest.isdigit()
        return " ".join([*real, *newer])


def in_module(source: Path, module: str) -> bool:
    """Whether a source is linked into decoding._C or decoding._kernels; most are into both."""
    if module == "_C":
        return BINDINGS / "testing" not in source.parents
    return source != BINDINGS / "module.cc"


@dataclass(frozen=True)
class Object:
    """One compilation of a source, or of several in one; variant: its instruction set or its type,
    where it has one."""

    sources: tuple[Path, ...]
    path: Path
    variant: str = ""

    @property
    def source(self) -> Path:
        """The first, which says how all of them are compiled."""
        return self.sources[0]

    @property
    def file(self) -> Path:
        """What the compiler is given."""
        return self.source if len(self.sources) == 1 else self.path.with_suffix(".cc")

    def write_file(self) -> None:
        if len(self.sources) > 1:
            names = [source.relative_to(ROOT / "csrc") for source in self.sources]
            write_changed(self.file, "".join(f'#include "{name}"\n' for name in names))

    @property
    def rule(self) -> str:
        return "nvcc" if self.source.suffix == ".cu" else "compile"

    @property
    def options(self) -> str:
        if BINDINGS in self.source.parents:
            includes = (pybind11.get_include(), sysconfig.get_paths()["include"])
            options = " ".join(f'-I"{path}"' for path in includes)
            if SANITIZERS:  # pybind11's templates, whose checks take longer than all kernels'
                return f"{options} -fno-sanitize=all -O0 -g0"
            return f"{options} -O1"  # they compute nothing, and take two thirds of the time
        if SANITIZERS and ROOT / "csrc/kernels" not in self.source.parents:
            return "-O0"  # nor does the engine
        if self.variant in isas():
            return f"-DDECODING_ISA={self.variant} {isas()[self.variant]}"
        return f"-DDECODING_TYPE={TYPES[self.variant]}" if self.variant else ""

    @property
    def header(self) -> Path | None:
        """The header that is precompiled with the same options, where there is one."""
        return self.path.parent / self.variant / HEADER.name if self.variant in isas() else None

    @property
    def link_order(self) -> tuple[int, Path]:
        """Portable objects first: where two objects hold the same inline function, the linker keeps
        the first, which every machine can run; and bindings, which are hardly optimised, after the
        kernels' own. With sanitizers bindings come last, which they skip."""
        kinds = ["portable", "bindings", *list(isas())[1:]]
        if SANITIZERS:
            kinds.append(kinds.pop(1))
        kind = "bindings" if BINDINGS in self.source.parents else self.variant
        return kinds.index(kind) if kind in kinds else -1, self.path


def variants(source: Path) -> list[str]:
    """What a source is compiled for, one after the other."""
    folders = source.relative_to(ROOT / "csrc").parts[:-1]
    if folders[0] == "kernels" and folders[-1] == "cpu" and source.stem not in ONCE:
        return [ONLY_ISA] if ONLY_ISA else list(isas())
    # Attention of a step has the most kernels by far.
    if folders == ("kernels", "attention", "cuda", "decode"):
        return [t for t in TYPES if t != "float32" or source.stem != "float8"]
    return [""]


def groups(sources: list[Path]) -> list[tuple[Path, ...]]:
    """What is compiled as one. Bindings are, since most of them take less time than to read
    pybind11's headers, in no more files than cores; but for module.cc, which is in no other
    module."""
    found: dict[object, list[Path]] = {}
    counts = {True: 0, False: 0}
    for source in sources:
        key: object = source
        if BINDINGS in source.parents and in_module(source, "_kernels"):
            used = in_module(source, "_C")
            key = used, counts[used] % GROUPS
            counts[used] += 1
        found.setdefault(key, []).append(source)
    return [tuple(group) for group in found.values()]


def is_cuda(source: Path) -> bool:
    """Whether a source is part of the CUDA engine alone."""
    kind = source.stem.partition("_")[0]  # of a binding: cuda, cuda_device
    return source.suffix == ".cu" or kind == "cuda" or "cuda" in source.relative_to(ROOT).parts


def objects(build: Path, modules: set[str], with_cuda: bool) -> list[Object]:
    """All that the modules consist of, in the order of linking."""
    found = [Object((build / "hash.cc",), build / "hash.o")]
    sources = [
        source
        for source in sorted(p for kind in ("*.cc", "*.cu") for p in (ROOT / "csrc").rglob(kind))
        if any(in_module(source, module) for module in modules)
        and (with_cuda or not is_cuda(source))
    ]
    for group in groups(sources):
        more = f"+{len(group) - 1}" if len(group) > 1 else ""
        for variant in variants(group[0]):
            name = object_name(group[0]) + more + f".{variant}" * bool(variant)
            found.append(Object(group, build / f"{name}.o", variant))
    return sorted(found, key=lambda each: each.link_order)


def rules(cuda: Cuda | None) -> list[str]:
    """What ninja runs to compile and to link."""
    cache = "ccache " if shutil.which("ccache") else ""
    cxx = os.environ.get("CXX", "g++")
    compiler = cxx if cxx.startswith("ccache ") else cache + cxx
    flags = f'{FLAGS} {OPTIMIZE} -I"{ROOT / "csrc"}"'
    if ONLY_ISA:
        flags += f" -DDECODING_ONLY_ISA={ONLY_ISA}"
    libraries = ""
    lines = []
    if cuda is not None:
        flags += f' -DDECODING_CUDA -I"{cuda.folder("cuda_runtime_api.h")}"'
        # Its own copy of CUDA's runtime, unseen by torch's.
        folder = cuda.folder("libcudart_static.a")
        libraries = f'-Wl,--exclude-libs,ALL -L"{folder}" -lcudart_static -ldl -lrt'
        lines += [
            "rule nvcc",
            f'  command = {cache}"{cuda.nvcc}" -MD -MF $out.d {NVCC_FLAGS} {cuda.targets}'
            f' -I"{ROOT / "csrc"}" $options -c $in -o $out',
            "  depfile = $out.d",
            "  deps = gcc",
            "  description = $name",
        ]
    return [
        *lines,
        "rule precompile",
        f"  command = {compiler} -MMD -MF $out.d {flags} $options -x c++-header $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $name",
        "rule compile",
        f"  command = {compiler} -MMD -MF $out.d {flags} $header $options -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $name",
        "rule link",
        f"  command = {cxx} {OPTIMIZE} -shared -pthread -o $out $in {libraries}",
        "  description = $name",
    ]


def ninja_file(modules: dict[str, Path], parts: list[Object], cuda: Cuda | None) -> str:
    """The whole build as ninja's text; modules: the file of each."""
    lines = rules(cuda)
    for header, options in {part.header: part.options for part in parts if part.header}.items():
        lines.append(f"build {quoted(header)}.gch: precompile {quoted(HEADER)}")
        lines += [f"  options = {options}", f"  name = {header.parent.name}/{header.name}"]
    for part in parts:
        after = f" | {quoted(part.header)}.gch" if part.header else ""
        lines.append(f"build {quoted(part.path)}: {part.rule} {quoted(part.file)}{after}")
        lines += [f"  options = {part.options}", f"  name = {part.path.name}"]
        if part.header:
            lines.append(f'  header = -fpch-preprocess -include "{part.header}"')
    for module, target in modules.items():
        linked = [quoted(part.path) for part in parts if in_module(part.source, module)]
        lines.append(f"build {quoted(target)}: link {' '.join(linked)}")
        lines.append(f"  name = {target.name}")
    return "\n".join([*lines, ""])


class NinjaBuild(build_ext):
    """build_ext that hands the work to ninja, so that only what changed is compiled again."""

    def finalize_options(self) -> None:
        super().finalize_options()
        wheel = not (self.inplace or self.editable_mode)
        if wheel or os.environ.get("DECODING_KERNELS") == "0":
            self.extensions = [ext for ext in self.extensions if ext.name == "decoding._C"]

    def build_extensions(self) -> None:
        targets = [Path(self.get_ext_fullpath(ext.name)).resolve() for ext in self.extensions]
        build = (ROOT / "build" / f"{sys.implementation.cache_tag}-{platform.machine()}").resolve()
        if SANITIZERS:
            build = build.with_name("-".join(filter(None, ["sanitize", ONLY_ISA])))
            targets = [build / target.name for target in targets]
        build.mkdir(parents=True, exist_ok=True)
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        # Not an import: the package needs torch, which an isolated build does not have.
        sources_hash = runpy.run_path(str(ROOT / "decoding/engine/build_check.py"))["sources_hash"]
        cuda = None if SANITIZERS else Cuda.find()
        archs = " ".join(cuda.archs) if cuda else ""
        modules = {target.name.split(".")[0]: target for target in targets}
        parts = objects(build, set(modules), cuda is not None)
        for part in parts:
            part.write_file()
        (build / "build.ninja").write_text(ninja_file(modules, parts, cuda))
        write_changed(build / "hash.cc", HASH.format(sources_hash(ROOT / "csrc"), archs))
        environment = {**CCACHE, **os.environ}
        command = [Path(ninja.BIN_DIR) / "ninja", "-C", str(build)]
        if subprocess.run(command, env=environment).returncode:
            raise SystemExit("the engine could not be compiled: see the first message above")

    def copy_extensions_to_source(self) -> None:
        if not SANITIZERS:
            super().copy_extensions_to_source()


class NamedFlavour(egg_info):
    """egg_info whose version says which CUDA a wheel was compiled with."""

    def finalize_options(self) -> None:
        if LOCAL_VERSION:
            self.tag_build = f"+{LOCAL_VERSION}"
        super().finalize_options()


if __name__ == "__main__":
    setup(
        packages=find_packages(include=["decoding", "decoding.*"]),
        package_data={
            "decoding": ["py.typed", "_C.pyi"],
            "decoding.compare": ["roofline.c"],
            "decoding.compare.report": ["page.html"],
            "decoding.server": ["page.html"],
        },
        exclude_package_data={"decoding": ["_kernels.pyi"]},
        ext_modules=[Extension("decoding._C", []), Extension("decoding._kernels", [])],
        cmdclass={"build_ext": NinjaBuild, "egg_info": NamedFlavour},
    )
