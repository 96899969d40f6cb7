"""What tuning finds is kept on disk, and nothing that happens there can do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from decoding import _C
from decoding import _kernels as kernels
from tests.conftest import random
from tests.support.random_models import load

pytestmark = pytest.mark.gpu


def tune(rows: int = 24) -> list[str]:
    """Tunes a product and computes it. The lines of the report."""
    x, weight = random(rows, 64).cuda().half(), random(96, 64, seed=1).cuda().half()
    y = torch.zeros(rows, 96, dtype=torch.half, device="cuda")
    report: str = kernels.tuned_linear(x, weight, None, None, y, "none")
    torch.testing.assert_close(y, x @ weight.T)
    return report.splitlines()[1:]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "a" / "b"
    monkeypatch.setenv("DECODING_CACHE", str(folder))
    monkeypatch.delenv("DECODING_TUNE", raising=False)
    return folder


def test_found_once(folder: Path) -> None:
    first = tune()
    (file,) = folder.iterdir()
    assert torch.cuda.get_device_name().split()[-1] in file.name
    assert len(first) == len(file.read_text().splitlines()) == 1
    assert tune() == first  # the times too: nothing was timed again
    assert len(tune(rows=7)) == 2
    assert tune() == tune(rows=7)
    assert list(folder.iterdir()) == [file]


def test_damage_is_ignored(folder: Path) -> None:
    tune()
    (file,) = folder.iterdir()
    good = file.read_text()
    for bad in (good.replace(" 24 ", " 48 "), good[: len(good) // 2], "\0" * 999, "2 64 96\n\n"):
        file.write_text(bad)
        assert len(tune()) == 1
        assert len(file.read_text().splitlines()) == 1 and file.read_text() != bad


def test_no_folder(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file where the folder should be")
    assert len(tune()) == 1


def test_kernels_of_all_algorithms_are_loaded(folder: Path) -> None:
    assert _C.load_tuned_kernels(0) == 0
    tune(rows=2048)  # more than are timed with kernels of our own
    assert _C.load_tuned_kernels(0) == 1
    (file,) = folder.iterdir()
    file.write_text("damaged\n")
    assert _C.load_tuned_kernels(0) == 0


def test_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODING_TUNE", "0")
    assert tune() == []
    assert not folder.exists()


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DECODING_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    tune()
    assert (tmp_path / ".cache" / "decoding").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    tune()
    assert (tmp_path / "caches" / "decoding").is_dir()


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize("how", [{"num_beams": 4}, {"do_sample": True, "seed": 1}], ids=str)
def test_steps_that_are_timed_in_a_search_leave_no_trace(name: str, how: dict[str, Any]) -> None:
    """They are replayed many times over: at its beginning, and again as sentences end."""
    ids = torch.randint(12, 50, (33, 9), generator=torch.Generator().manual_seed(0))
    model = load(name, "cuda", dtype="float16")
    first, second = (model.generate(ids, **how, max_new_tokens=40) for _ in range(2))
    assert torch.equal(first, second)
