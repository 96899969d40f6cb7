"""Engines for tests, and what a request of theirs must give."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import decoding
from decoding.serving import planning
from decoding.serving.planning import compiled, engine_limits
from tests.support.random_models import load, ours, reference

# Of scores: on a GPU, and where ranks share out a model, sums have other orders.
TOLERANCES = {"cuda": 1e-5, "split": 1e-4}
SICK = 37  # the token of sick() that makes the logits of what holds it infinite
PATCHING = threading.Lock()  # two threads that patch at once leave what they patched behind
FULL: dict[str, Any] = {"return_dict_in_generate": True, "output_sequences_scores": True}


@cache
def engine(name: str, device: str = "cpu") -> decoding.Engine:
    """An engine of ours(name), for all tests."""
    return decoding.Engine(ours(name, device))


def tight_engine(model: decoding.Model, rows: int, pages: int, **options: bool) -> decoding.Engine:
    """One with so many rows and pages, for requests as long as the model allows."""
    compiled_engine = model.bind_engine()
    with PATCHING, mock.patch.object(planning, "TABLES", 1.0):
        limits = engine_limits(compiled_engine, model.spec, model.place, None, rows)
        _, memory = compiled_engine.plan(compiled(replace(limits, pages=pages)))
        return decoding.Engine(model, memory=memory, max_requests=rows, **options)


@cache
def sick(name: str = "gpt2", device: str = "cpu", **options: Any) -> decoding.Model:
    """The same model, but for the token SICK. options: of load()."""
    broken = reference(name)
    state = {name: tensor.clone() for name, tensor in broken.state_dict().items()}
    try:
        broken.get_input_embeddings().weight.data[SICK] = 3e38  # its norm overflows
        return load(name, device, threads=1, **options)
    finally:
        broken.load_state_dict(state)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except Exception as error:
            return error


def differences(found: Any, expected: Any, device: str = "cpu") -> list[str]:
    """How two outcomes differ: to the bit on the CPU; else tokens, and scores beyond TOLERANCES, so
    that of beams with the same tokens and scores either may be the first, and a row's parent."""
    if isinstance(found, Exception) or isinstance(expected, Exception):
        same = type(found) is type(expected) and said(found) == said(expected)
        return [] if same else [f"{found!r}, not {expected!r}"]
    if type(found) is not type(expected):
        return [f"{type(found)}, not {type(expected)}"]
    if isinstance(found, Tensor):
        same = equal(found, expected, device)
        return [] if same else [f"{found.tolist()}, not {expected.tolist()}"]
    if found.keys() != expected.keys():
        return [f"fields {list(found)}, not {list(expected)}"]
    if device != "cpu" and "beam_indices" in found.keys():
        found, expected = without_order(found), without_order(expected)
    each = {name: differences(found[name], expected[name], device) for name in expected}
    return [f"{name}: {what}" for name, what in each.items() if what]


def without_order(outcome: Any) -> dict[str, Any]:
    """With where there are beam indices, in place of which."""
    return {**outcome, "beam_indices": outcome["beam_indices"] >= 0}


def said(error: Exception) -> str:
    """Without the step: of several samples whose numbers are not finite, any may be named."""
    return str(error).split(" at step ")[0]


def equal(a: Tensor, b: Tensor, device: str) -> bool:
    if device == "cpu" or a.dtype != torch.float32 or a.shape != b.shape:
        return a.dtype == b.dtype and torch.equal(a, b)
    tolerance = TOLERANCES[device]
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_same(found: Any, expected: Any, device: str = "cpu") -> None:
    assert not differences(found, expected, device), differences(found, expected, device)


def assert_idle(engine: decoding.Engine) -> None:
    """Nothing runs, and every page is free: what has ended gives them back within a few steps."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        stats = engine.stats()
        if stats["running"] == stats["waiting"] == stats["pages_used"] == 0:
            return
        time.sleep(0.01)
    raise AssertionError(engine.stats())
