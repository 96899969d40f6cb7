"""What the sdist and its wheel hold, built with a compiler that writes empty files in no time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import decoding
from decoding.engine.build_check import sources_hash
from tests.support.dependencies import CSRC, ROOT, includes, sources

FOLDERS = ("csrc", "decoding", "models", "tests")
FILES = ("LICENSE", "MANIFEST.in", "README.md", "THIRD_PARTY.md", "pyproject.toml", "setup.py")
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
# Headers of csrc in angle brackets, and the heading of THIRD_PARTY.md for what a wheel has of them.
NOTICES = {
    r"pybind11/.*": "pybind11",
    r"(cuda\w*|library_types)\.h": "NVIDIA CUDA Toolkit",
    r"[a-z_]+|cxxabi\.h": "The GNU C++ library",
    # Calls and instructions alone.
    r"(arm_neon|dlfcn|fcntl|immintrin|pthread|sched|sys/auxv|sys/mman|unistd)\.h": None,
}


def run_setup(folder: Path, *commands: str, **environment: str) -> None:
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", *commands],
        cwd=folder,
        env={**os.environ, **environment},
        check=True,
    )


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    pytest.importorskip("setuptools", reason="it is built without network")
    folder = tmp_path_factory.mktemp("checkout")
    unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=unbuilt)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    run_setup(folder, "sdist")
    [archive] = (folder / "dist").glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "unpacked")
    [unpacked] = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Of a CUDA flavour, by its name."""
    compiler = sdist / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    settings = {"CCACHE_DISABLE": "1", "DECODING_CUDA_ARCHS": "", "DECODING_LOCAL_VERSION": "cu130"}
    run_setup(sdist, "bdist_wheel", CXX=str(compiler), **settings)
    [built] = (sdist / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_an_sdist_holds_all_sources_and_no_more(sdist: Path) -> None:
    assert sources_hash(sdist / "csrc") == sources_hash(CSRC)
    folders = {path.name for path in sdist.iterdir() if path.is_dir()}
    assert folders - {"build", "dist"} == {"csrc", "decoding", "decoding.egg-info"}
    assert not (sdist / "decoding/models/demo").exists()


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
def test_a_wheel_of_a_flavour_says_so_in_its_version(wheel: Path) -> None:
    assert wheel.name.startswith(f"decoding-{decoding.__version__}+cu130-cp")


@pytest.mark.slow
def test_a_wheel_names_what_it_holds_of_others(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [folder] = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    for name in ("LICENSE", "THIRD_PARTY.md"):
        text = archive.read(f"{folder}/licenses/{name}").decode()
        assert text == (ROOT / name).read_text(encoding="utf-8")
    licence = metadata.distribution("pybind11").read_text("licenses/LICENSE")
    assert licence is not None
    assert licence.split("\nPlease also")[0].strip() in text, "pybind11's terms have changed"


def test_every_foreign_header_has_its_notice() -> None:
    used = {
        header
        for path in sources("csrc")
        for opening, header in includes(path.read_text(encoding="utf-8"))
        if opening == "<"
    }
    needed: set[str | None] = set()
    for header in used:
        [heading] = [heading for like, heading in NOTICES.items() if re.fullmatch(like, header)]
        needed.add(heading)
    notices = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
    assert needed - {None} == set(re.findall(r"^### (.*)$", notices, re.MULTILINE))


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
