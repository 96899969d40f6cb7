"""Engines whose model two processes share out: rank 0 takes requests, and both do the same work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import decoding
from decoding import _C
from tests.support.families import FAMILIES
from tests.support.random_models import reference
from tests.tensor_parallel.calls import FP8, ROWS, first_step, on_host
from tests.tensor_parallel.ranks import Ranks
from tests.tensor_parallel.requests import LONG, REQUESTS, generated, stopped

NAMES = ("gpt2", "marian", "llama", "gemma2")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        model = FAMILIES[name].model() if name in FAMILIES else reference(name)
        model.save_pretrained(folder / name)
    return {name: str(folder / name) for name in NAMES}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Of each rank; one GPU for both where there is no other."""
    return "cuda:0" if request.param == "cuda" and len(_C.gpus()) == 1 else str(request.param)


@pytest.fixture(scope="module")
def ranks(
    device: str, paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each rank finds for every job of engine_jobs.py."""
    folder = tmp_path_factory.mktemp("ranks")
    started = Ranks(
        "tests.tensor_parallel.engine_jobs",
        paths,
        folder,
        environment={"DECODING_DEVICE": device},
    )
    results = started.results(timeout=500)
    assert started.processes[0].returncode == 0, started.errors[0]
    return results


@pytest.fixture(scope="module")
def found(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What rank 0 finds."""
    return ranks[0]


@pytest.fixture(scope="module")
def whole(device: str, paths: dict[str, str]) -> dict[str, Any]:
    return {name: decoding.load(path, device=device, threads=1) for name, path in paths.items()}


@pytest.fixture(scope="module")
def long(whole: dict[str, Any]) -> list[Any]:
    return [generated(whole["gpt2"], row, LONG) for row in ROWS]


@pytest.mark.parametrize("name", NAMES)
def test_requests_of_all_kinds_at_once(name: str, found: Any, whole: dict[str, Any]) -> None:
    mixed = found["mixed"]
    for ours, (row, options) in zip(mixed[name], REQUESTS, strict=True):
        assert ours == generated(whole[name], row, options), (row, options)
    batch = on_host(whole[name].generate(ROWS, max_new_tokens=5))
    np.testing.assert_array_equal(mixed[name, "batch"], batch)


def test_two_engines_at_once(found: Any, whole: dict[str, Any]) -> None:
    for name, results in zip(("gpt2", "marian"), found["side_by_side"], strict=True):
        assert results == [generated(whole[name], row, LONG) for row in ROWS] * 12


def test_pieces_are_the_result(found: Any, long: list[Any]) -> None:
    for pieces, result in found["streamed"]:
        assert pieces == result
    assert [result for _, result in found["streamed"][::2]] == [rows[0] for rows in long]


def test_who_is_cancelled_leaves_the_others_alone(found: Any, long: list[Any]) -> None:
    results, ends, left = found["cancelled"]
    assert results == (long * 12)[::2]
    assert decoding.Cancelled in ends
    expected = (long * 12)[1::2]
    assert all(end in (decoding.Cancelled, rows) for end, rows in zip(ends, expected, strict=True))
    assert left == [0, 0, 0]


def test_deadlines_are_those_of_rank_0(found: Any, long: list[Any]) -> None:
    well, ends, left = found["expired"]
    assert well == long[0]
    assert TimeoutError in ends
    assert left == [0, 0, 0]


def test_requests_are_swapped_out_on_both(found: Any, long: list[Any]) -> None:
    results, swaps = found["swapped"]
    assert swaps > 0
    assert results == long * 4


def test_keys_and_values_in_fp8(found: Any, device: str, paths: dict[str, str]) -> None:
    """Near those of one GPU with them; a CPU has no such type."""
    scores = found["in_fp8"]
    if device == "cpu":
        assert isinstance(scores, NotImplementedError) and "not supported on cpu" in str(scores)
        return
    _, expected = first_step(decoding.load(paths["gpt2"], device, **FP8))
    allowed = 0.2 * abs(expected).max() + 0.1  # behind another token all differs
    np.testing.assert_allclose(scores, np.tile(expected, 4), 0, allowed)


def test_stop_strings(found: Any, device: str) -> None:
    model = decoding.load("models/demo", device, "float32", threads=1)
    results = stopped(lambda ids, **options: generated(model, ids, options), model.tokenizer)
    assert found["stop_strings"] == [results] * 2
    assert len({len(rows[0]) for rows in results}) > 1


def test_what_is_refused(ranks: list[dict[str, Any]]) -> None:
    ours, theirs = (rank["refused"] for rank in ranks)
    assert ours["submit"] is decoding.Request and ours["stats"] is dict
    for name in ("submit", "stats"):
        assert isinstance(theirs[name], ValueError) and "on rank 0" in str(theirs[name])
    assert isinstance(ours["alone"], NotImplementedError) and "share steps" in str(ours["alone"])
    for rank in (ours, theirs):
        for name in ("generate", "score"):
            assert isinstance(rank[name], NotImplementedError)
            assert "while an Engine" in str(rank[name])


def test_calls_go_on_once_engines_are_closed(
    ranks: list[dict[str, Any]], whole: dict[str, Any]
) -> None:
    expected = generated(whole["gpt2"], ROWS[0], {"max_new_tokens": 5})
    assert [rank["generate_again"] for rank in ranks] == [expected] * 2


def test_a_follower_that_leaves_ends_the_engine(found: Any) -> None:
    assert "rank 1 of 2" in found["left"]
    assert "its engine was closed before that of rank 0" in found["left"]


def test_a_follower_that_is_killed_ends_the_engine(ranks: list[dict[str, Any]]) -> None:
    errors, seconds, failure = ranks[0]["killed"]
    assert "rank 1 of 2 (process " in failure and "has ended" in failure
    assert any(failure in error for error in errors)
    assert seconds < 30  # it would wait for ever
    assert "killed" not in ranks[1]
