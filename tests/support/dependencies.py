"""Reads what source files depend on: includes of C++ files, imports of Python files, circles."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CSRC = ROOT / "csrc"
FOLDERS = ("benchmarks", "csrc", "decoding", "examples", "models", "tests")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".c", ".py"}
EXTENSIONS = {"decoding._C", "decoding._kernels"}


def sources(folder: str) -> list[Path]:
    """All source files below a folder of the project; links to folders are not followed."""
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)


def includes(text: str) -> list[tuple[str, str]]:
    """Each include of a C++ file: its opening quote or bracket, and the header."""
    return re.findall(r'^\s*#\s*include\s*(["<])([^">]+)', text, re.MULTILINE)


def module_name(path: Path) -> str:
    """A Python file's module; the folder models is the package decoding.models."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "models":
        parts = ("decoding", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Full names of what a Python file imports, anywhere in it: modules, or names in them."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def include_graph() -> dict[str, set[str]]:
    """For each file of csrc the files of csrc that it includes."""
    files = {path.relative_to(CSRC).as_posix(): path for path in sources("csrc")}
    return {
        name: {header for _, header in includes(path.read_text()) if header in files}
        for name, path in files.items()
    }


def import_graph(*folders: str) -> dict[str, set[str]]:
    """For each module of these folders those of them that it imports, in functions and for type
    checkers too."""
    files = {module_name(path): path for folder in folders for path in sources(folder)}
    known = files.keys() | EXTENSIONS
    graph = {}
    for name, path in files.items():
        # `from a import b` depends on the module a.b, or, where b is no module, on a.
        found = {full if full in known else full.rpartition(".")[0] for full in imports(path)}
        graph[name] = found & files.keys() - {name}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node, or of a node that names itself."""
    reached = {node: reachable(graph, node) for node in graph}
    found = {
        tuple(sorted(other for other in reached[node] if node in reached[other]))
        for node in graph
        if node in reached[node]
    }
    return sorted(map(list, found))


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += graph[node]
    return found
