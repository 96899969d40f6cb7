"""Warnings come once, and from the line of the caller."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import decoding

DEMO = "models/demo"
OLD: dict[str, Any] = {"vocabulary_map": None}


@pytest.fixture(scope="module")
def model() -> decoding.Model:
    return decoding.load(DEMO, device="cpu")


CALLS: dict[str, Callable[[decoding.Model], Any]] = {
    "generate": lambda model: model.generate([[5, 0]], top_k=5, max_new_tokens=2),
    "stream": lambda model: list(model.stream([[5, 0]], top_k=5, max_new_tokens=2)),
    "function": lambda model: decoding.generate(model, [[5, 0]], top_k=5, max_new_tokens=2),
    "translate": lambda model: model.translate(["Gut."], top_k=5),
    "batches": lambda model: model.translate(["Gut.", "Ja."], top_k=5, batch_tokens=1),
    "minimum": lambda model: model.generate([[5, 0]], min_new_tokens=9, max_new_tokens=2),
    "beams": lambda model: model.generate([[5, 0]], do_sample=True, max_new_tokens=2),
    "texts": lambda model: model.translate(["Gut.", "Ja."], do_sample=True, batch_tokens=1),
    "length": lambda model: model.translate(["Gut."], max_new_tokens=2, max_length=9),
    "old name": lambda model: model.generate([[5, 0]], **OLD, max_new_tokens=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_at_the_line_of_the_caller_and_once(name: str, model: decoding.Model) -> None:
    call = CALLS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(model)
    [warning] = caught
    assert warning.filename == __file__
    assert warning.lineno == inspect.getsourcelines(call)[1]


def test_what_they_say(model: decoding.Model) -> None:
    with pytest.warns(UserWarning, match=r"samples within the model's 4 beams.* pass num_beams=1"):
        model.translate(["Gut."], do_sample=True)
    with pytest.warns(UserWarning, match=r"top_k=5 has no effect without do_sample=True"):
        model.translate(["Gut."], top_k=5)
    with pytest.warns(UserWarning, match=r"max_new_tokens=3 wins over max_length=9"):
        model.translate(["Gut."], max_new_tokens=3, max_length=9)
