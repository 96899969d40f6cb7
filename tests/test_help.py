"""help() of what users call first names each argument, and shows how it is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import decoding
from decoding.generation.option_types import SharedOptions, TranslateOptions

OWN = set(get_type_hints(TranslateOptions)) - set(get_type_hints(SharedOptions))
CALLS: dict[Callable[..., Any], set[str]] = {
    decoding.load: set(),
    decoding.generate: set(),
    decoding.accelerate: set(),
    decoding.Model.generate: set(),
    decoding.Model.translate: OWN - {"generation_config"},
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_each_argument_has_its_line(call: Callable[..., Any]) -> None:
    text = inspect.getdoc(call) or ""
    body = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    names: set[str] = set()
    for line in re.findall(r"^    (\w+(?:, \w+)*): ", body, re.MULTILINE):
        names |= set(line.split(", "))
    expected = {name for name in inspect.signature(call).parameters if name != "self"}
    assert names == (expected | CALLS[call]) - {"inputs"}
    assert re.search(r"^    \S.*\(", text.partition("\nArgs:")[0], re.MULTILINE), "an example"
    assert "Raises" in text
