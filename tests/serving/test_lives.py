"""A short life of many requests: tests/serving/lives.py has the long one."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.serving import lives


def test_random_lives(device: str) -> None:
    counts = lives.run(seed=0, numbers=range(300), cancelled=0.15, device=device)
    assert set(counts) == {"ended", "failed", "cancelled", "expired", "refused"}
    assert counts["ended"] > 150


def test_random_lives_in_engines_that_swap(device: str) -> None:
    """On a busy machine few are alive at once, and fewer swap: then others live, too."""
    counts = Counter[str]()
    for seed in range(8):
        counts += lives.run(seed, range(300), cancelled=0.15, device=device, overcommit=True)
        assert counts["ended"] > 150
        if counts["swaps"] > 2:
            return
    raise AssertionError(counts)


def test_a_stream_whose_result_is_empty() -> None:
    """Its beams become worse than transformers' placeholder, and what was told is not the result's:
    the reader hears so."""
    counts = lives.run(seed=2612, numbers=range(72025, 72026), cancelled=0.3)
    assert counts == {"ended": 1}


def test_a_life_is_its_seeds_and_its_numbers() -> None:
    drawn = [str(lives.DrawnLife(1, number, 0.5).life()) for number in range(30)]
    assert drawn == [str(lives.DrawnLife(1, number, 0.5).life()) for number in range(30)]
    assert len({line.split(": ", 1)[1] for line in drawn}) == 30
    assert drawn != [str(lives.DrawnLife(2, number, 0.5).life()) for number in range(30)]


def test_a_wrong_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(lives, "differences", lambda *outcomes: ["they differ"])
        with pytest.raises(AssertionError, match=r"(?s)they differ.*--seed 3 .*--only 0 "):
            lives.run(seed=3, numbers=range(5), cancelled=0.0)
