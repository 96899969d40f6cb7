"""The compiled engine: absent, out of date, and as its stub describes it."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import decoding
from decoding import _C, _kernels
from decoding.engine.build_check import check_built, sources_hash

PACKAGE = Path(decoding.__file__).parent


def test_a_missing_engine_is_named_with_the_command(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "decoding", ignore=shutil.ignore_patterns("_C*.so"))
    # -S: an editable install would find the engine of the checkout.
    run = subprocess.run(
        [sys.executable, "-S", "-c", "import decoding; decoding.Limits"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0
    assert "engine is missing" in run.stderr and "pip install -e ." in run.stderr


def test_an_old_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (PACKAGE.parent / "csrc").is_dir():
        pytest.skip("an installed wheel has no sources beside it")
    check_built(PACKAGE)
    monkeypatch.setattr(_C, "sources_hash", "of other sources")
    with pytest.raises(ImportError, match="older than .*csrc.*pip install -e"):
        check_built(PACKAGE)


def test_kernels_of_other_sources_are_refused(tmp_path: Path) -> None:
    """decoding._kernels compares itself with the engine, which is compared with the sources."""
    code = "from decoding import _C; _C.sources_hash = ''; from decoding import _kernels"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert run.returncode != 0 and "setup.py build_ext --inplace" in run.stderr


def test_kernels_throw_the_engines_error() -> None:
    with pytest.raises(decoding.Error, match="isa must be one of"):
        _kernels.softmax(torch.zeros(1, 1), None, torch.zeros(1, 1), 1.0, isa="mmx", threads=1)


def test_every_change_of_a_source_changes_the_hash(tmp_path: Path) -> None:
    (tmp_path / "a.cc").write_text("int a;")
    first = sources_hash(tmp_path)
    (tmp_path / "README.md").write_text("not compiled")
    assert sources_hash(tmp_path) == first
    (tmp_path / "a.cc").write_text("int b;")
    second = sources_hash(tmp_path)
    (tmp_path / "a.cc").rename(tmp_path / "b.cc")
    assert len({first, second, sources_hash(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("archs", "code"),
    [
        ("80 90", ["sm_80", "sm_90a", "compute_90"]),
        ("89", ["sm_89", "compute_89"]),
        ("90a", ["sm_90a"]),  # newer GPUs could not compile it
    ],
)
def test_what_is_compiled_for_gpus(archs: str, code: list[str]) -> None:
    setup = PACKAGE.parent / "setup.py"
    if not setup.exists():
        pytest.skip("an installed wheel has no sources beside it")
    cuda = runpy.run_path(str(setup))["Cuda"](Path("nvcc"), archs.split())
    assert re.findall(r",code=(\w+)", cuda.targets) == code


def test_models_cannot_be_imported_under_a_second_name() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import models"], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert "decoding.models" in run.stderr and run.returncode != 0


def names(body: list[ast.stmt]) -> set[str]:
    """What a stub's module or class defines, private names apart."""
    found = set()
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


# Not in a CPU's build.
OF_CUDA = {
    *("CudaCollective", "CudaLaunchLock", "DeviceArray", "free_memory", "gpus"),
    *("load_tuned_kernels", "look_for_cublaslt"),
}


def test_the_stub_names_what_the_module_has() -> None:
    stub = ast.parse((PACKAGE / "_C.pyi").read_text())
    missing = set() if _C.cuda_archs else OF_CUDA
    assert names(stub.body) - missing == public(_C)
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and node.name not in {"Error", *missing}:
            assert names(node.body) == public(getattr(_C, node.name)), node.name
