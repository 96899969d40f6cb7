"""What a wheel holds, built with a compiler that writes empty files in no time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("csrc", "decoding", "models", "LICENSE", "README.md", "pyproject.toml", "setup.py")
COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
  [ "$1" = -o ] && : > "$2"
  [ "$1" = -MF ] && : > "$2"
  shift
done
"""
SNIPPET = """import decoding
model = decoding.load("folder")
reveal_type(model)
model.generated("misspelt")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", reason="the wheel is built without network")
    folder = tmp_path_factory.mktemp("checkout")
    for part in PARTS:
        if (ROOT / part).is_dir():
            unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=unbuilt)
        else:
            shutil.copy(ROOT / part, folder)
    compiler = folder / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel"],
        cwd=folder,
        env={**os.environ, "CXX": str(compiler), "CCACHE_DISABLE": "1", "DECODING_CUDA_ARCHS": ""},
        check=True,
    )
    [built] = (folder / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_a_wheel_holds_the_library_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"decoding"}
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    expected = {f"_C{suffix}", "_C.pyi", "py.typed", "compare/report/page.html"}
    expected |= {"models/spec.py", "models/families/marian.py"}
    assert expected <= {name.removeprefix("decoding/") for name in names}
    assert [name for name in names if "_kernels" in name or "/demo" in name] == []
    kinds = {Path(name).suffix for name in names if name.startswith("decoding/")}
    assert kinds == {".c", ".html", ".py", ".pyi", ".so", ".typed"}


@pytest.mark.slow
def test_users_of_a_wheel_have_types(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "snippet.py").write_text(SNIPPET)
    python = str(tmp_path / "venv/bin/python")
    command = ["mypy", "--strict", "--no-incremental", "--python-executable", python, "snippet.py"]
    run = subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True
    )
    first, second, *_ = run.stdout.splitlines()
    assert 'Revealed type is "decoding.model.Model' in first, run.stdout
    assert "snippet.py:4: error" in second, run.stdout
