"""Dependencies point one way: decoding -> bindings -> engine -> kernel contracts -> core."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CSRC = ROOT / "csrc"

# For each room of csrc, what its files may include of ours. A kernel's files see the contracts and
# their own backend's helpers; only sessions and bindings choose a backend.
ROOMS = {
    "core": ("core/",),
    "kernels": ("core/", "kernels/[a-z_]+.h"),
    "kernels/cpu": ("core/", "kernels/[a-z_]+.h", "kernels/cpu/"),
    "kernels/cuda": ("core/", "kernels/[a-z_]+.h", "kernels/cuda/"),
    "engine": ("core/", "kernels/[a-z_]+.h", "engine/"),
    "bindings": (
        "core/",
        "kernels/[a-z_]+.h",
        "kernels/cpu/isa.h",
        "engine/(controls|encoder_session|session).h",
        "bindings/",
    ),
}
BACKENDS = {  # the few files that choose a backend
    "engine/cpu/process.h": ("kernels/cpu/stream.h",),
    "engine/cpu/encoder.cc": ("kernels/cpu/isa.h", "kernels/cpu/stream.h"),
    "engine/cpu/session.cc": ("kernels/cpu/isa.h", "kernels/cpu/stream.h"),
    "bindings/testing/cuda.h": ("kernels/cuda/",),
    "bindings/testing/recording.h": ("kernels/cpu/team.h",),
    "bindings/testing/cuda.cc": ("kernels/cuda/",),
    "engine/cuda/encoder.cc": ("kernels/cuda/",),
    "engine/cuda/constraints.h": ("kernels/cuda/resources.h",),
    "engine/cuda/inputs.h": ("kernels/linear/cuda/matmul.h", "kernels/cuda/resources.h"),
    "engine/cuda/config.h": ("kernels/cuda/resources.h",),
    "engine/cuda/select.h": ("kernels/cuda/stream.h",),
    "engine/cuda/session.cc": ("kernels/cuda/",),
    "engine/cuda/transfers.h": ("kernels/cuda/resources.h",),
}
FOREIGN = {  # headers that belong to one place
    r"(Python\.h|pybind11/.*)": r"bindings/.*",
    r"cuda_runtime.*": r"(kernels/cuda/.*|engine/session_cuda\.cc)",
    r"(cublas|cudnn|cutlass|cub/|thrust/).*": r"nowhere",  # cuBLASLt is found at run time
    r"(torch|ATen|c10)/.*": r"nowhere",
}


def sources() -> list[str]:
    return sorted(
        path.relative_to(CSRC).as_posix()
        for path in CSRC.rglob("*")
        if path.suffix in {".h", ".cc", ".cu", ".cuh"}
    )


def upward_includes(name: str, text: str) -> list[str]:
    """The includes of a C++ file that its place in csrc does not allow."""
    room = name.rsplit("/", 1)[0]
    allowed = (*ROOMS[room], *BACKENDS.get(name, ()))
    wrong = []
    for quote, header in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)', text, re.MULTILINE):
        if quote == '"':
            if not any(re.match(pattern, header) for pattern in allowed):
                wrong.append(header)
        for foreign, home in FOREIGN.items():
            if re.fullmatch(foreign, header) and not re.fullmatch(home, name):
                wrong.append(header)
    return wrong


@pytest.mark.parametrize("name", sources())
def test_includes_point_downward(name: str) -> None:
    assert upward_includes(name, (CSRC / name).read_text()) == []


def imports(path: Path) -> set[str]:
    """Full names of the modules that a Python file imports, relative ones resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    if package and package[0] == "models":
        package = ("decoding", *package)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def python_files(folder: str) -> list[Path]:
    return sorted(
        path
        for path in (ROOT / folder).rglob("*.py")
        if "models" not in path.parts[:-1] or folder == "models"
    )


def inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


# Hugging Face's models are taken as they are handed in; only comparisons, tests and benchmarks
# import it, and what else a comparison needs.
PEERS = ("transformers", "ctranslate2", "matplotlib", "jinja2", "markupsafe")


def room(path: Path) -> str:
    """ "compare", which its command belongs to, "models", or "decoding" for all the rest."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("decoding/compare/") or name == "decoding/cli/compare.py":
        return "compare"
    return "models" if name.startswith("models/") else "decoding"


def wrong_imports(room: str, names: set[str]) -> set[str]:
    """Imports that a file of `room` must not make."""
    wrong = {name for name in names if inside(name, "tests", "benchmarks", "models")}
    if room == "compare":
        return wrong | {name for name in names if inside(name, "decoding._C")}
    wrong |= {name for name in names if inside(name, "decoding.compare", *PEERS)}
    if room == "models":
        wrong |= {
            name
            for name in names
            if inside(name, "decoding") and not inside(name, "decoding.models")
        }
    return wrong


@pytest.mark.parametrize("folder", ["decoding", "models"])
def test_imports_point_downward(folder: str) -> None:
    files = python_files(folder)
    assert files
    wrong = {
        str(path.relative_to(ROOT)): wrong_imports(room(path), imports(path)) for path in files
    }
    assert not any(wrong.values()), wrong


def test_the_program_needs_nothing_of_the_extras() -> None:
    """decoding/cli imports the command `compare`, which must not import what is in its extra."""
    hidden = "".join(f"sys.modules[{name!r}] = None;" for name in (*PEERS, "sacrebleu"))
    code = f"import sys; {hidden} import decoding.cli.main"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_text_does_not_touch_the_engine() -> None:
    files = [ROOT / f"decoding/{name}.py" for name in ("translate", "languages", "splitting")]
    for folder in ("cli", "tokenizers"):
        files += (ROOT / "decoding" / folder).rglob("*.py")
    for path in files:
        assert not any(inside(name, "decoding._C") for name in imports(path)), path


def test_the_rules_can_fail() -> None:
    assert upward_includes("core/arena.h", '#include "engine/session.h"') == ["engine/session.h"]
    assert upward_includes("kernels/rows/norm.h", "#include <pybind11/stl.h>") == ["pybind11/stl.h"]
    assert upward_includes("kernels/rows/cpu/norm.cc", '#include "kernels/cuda/x.h"')
    assert upward_includes("engine/search/request.h", '#include "kernels/cpu/stream.h"')
    assert wrong_imports("models", {"decoding.engine.session"}) == {"decoding.engine.session"}
    assert wrong_imports("decoding", {"models.gpt"}) == {"models.gpt"}
    assert wrong_imports("decoding", {"decoding.compare.runs"}) == {"decoding.compare.runs"}
    assert wrong_imports("compare", {"benchmarks.report.rows"}) == {"benchmarks.report.rows"}
    assert wrong_imports("compare", {"transformers"}) == set()
