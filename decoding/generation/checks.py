"""Checks of the values of options: each turns a value into its own type, or raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from decoding.models.files import short
from decoding.models.layouts.options import MOST

LARGEST = 3.4e38  # finite in float32, as the engine has numbers
Check = Callable[[str, Any], Any]  # (name, value) -> the value in its own type, or an error


def whole(least: int = -MOST - 1, most: int = MOST) -> Check:
    """A whole number, from `least` to `most`: the engine's own range, where none is given."""

    def check(name: str, value: Any) -> int:
        value = scalar(name, value, "a whole number")
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"{name} must be a whole number, got {short(value)}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {short(value)}")
        if value > most:
            raise ValueError(f"{name} must be at most {most}, got {short(value)}")
        return int(value)

    return check


def number(
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> Check:
    """A finite number within these bounds."""
    bounds = [
        (above, -math.inf, "greater than"),
        (least, -math.inf, "at least"),
        (below, math.inf, "less than"),
        (most, math.inf, "at most"),
    ]
    said = " and".join(f" {words} {bound:g}" for bound, none, words in bounds if bound != none)

    def check(name: str, value: Any) -> float:
        value = scalar(name, value, "a number")
        if not (abs(value) <= LARGEST and above < value < below and least <= value <= most):
            raise ValueError(f"{name} must be a finite number{said}, got {short(value)}")
        return float(value)

    return check


def scalar(name: str, value: Any, kind: str) -> Any:
    if hasattr(value, "tolist"):  # numpy and torch numbers
        value = value.tolist()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {kind}, got {short(value)}")
    return value


def per_row(check: Check) -> Check:
    """One value for all rows of a batch, or a list, array or tensor with one for each."""

    def check_each(name: str, value: Any) -> Any:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            return check(name, value)
        if not value:
            raise ValueError(f"{name} must be one value, or a list with one for each row; got []")
        return tuple(check(name, item) for item in value)

    return check_each


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {short(value)}")
    return value


def stopping(name: str, value: Any) -> bool | str:
    if not isinstance(value, bool) and value != "never":
        raise ValueError(f'{name} must be True, False or "never", got {short(value)}')
    return value if isinstance(value, bool) else "never"


def normalization(name: str, value: Any) -> str:
    if value != "gnmt":
        raise ValueError(
            f'{name} must be "gnmt", or None for S / G^length_penalty; got {short(value)}'
        )
    return "gnmt"


def ids(name: str, value: Any) -> tuple[int, ...]:
    """One id or several; always a tuple."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    items = value if isinstance(value, (list, tuple)) else [value]
    check = whole()
    if {type(item) for item in items} == {int}:  # as nearly always, and there may be thousands
        for item in (min(items), max(items)):
            check(name, item)
        return tuple(items)
    return tuple(check(name, item) for item in items)


def word(name: str, value: Any) -> tuple[int, ...]:
    """Ids that follow each other."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{name} must hold lists of ids, none of them empty; got {short(value)}")
    return ids(name, value)


def words(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{name} must be a list of lists of ids, not empty; got {short(value)}")
    return tuple(word(name, item) for item in value)


def word_choices(name: str, value: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each constraint the words of which one must occur; Hugging Face's two forms mixed:
    a list of ids is one word, a list of lists alternatives."""
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{name} must be a list of words, not empty; got {short(value)}")

    def nested(item: Any) -> bool:
        return isinstance(item, (list, tuple)) and any(isinstance(x, (list, tuple)) for x in item)

    choices = tuple(words(name, item) if nested(item) else (word(name, item),) for item in value)
    for alternatives in choices:
        for a in alternatives:
            if any(a != b and a == b[: len(a)] for b in alternatives):
                raise ValueError(
                    f"{name}: {list(a)} begins another alternative of the same constraint, which "
                    "could then never be completed: leave one out"
                )
    return choices


def biases(name: str, value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Words and what is added to the score of their last token: a dict with tuples of ids as keys,
    or a list of [ids, bias]. The last one of equal words counts, as in Hugging Face."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    form = "a dict of {ids: bias} or a list of [ids, bias], not empty"
    if not isinstance(pairs, (list, tuple)) or not pairs:
        raise ValueError(f"{name} must be {form}; got {short(value)}")
    found: dict[tuple[int, ...], float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError(f"{name} must be {form}; it holds {short(pair)}")
        bias = float(scalar(name, pair[1], "a number"))
        if not bias < math.inf:  # -inf forbids
            raise ValueError(f"{name} must add a finite number or -inf, got {short(bias)}")
        found[word(name, pair[0])] = bias
    return tuple(found.items())


def decay(name: str, value: Any) -> tuple[int, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"{name} must be (start, factor), got {short(value)}")
    return whole(0)(name, value[0]), number(above=0)(name, value[1])


def strings(name: str, value: Any) -> tuple[str, ...]:
    """One string or several; always a tuple."""
    items = value if isinstance(value, (list, tuple)) else [value]
    if not items or not all(isinstance(item, str) and item for item in items):
        raise ValueError(
            f"{name} must be a string or a list of them, none empty; got {short(value)}"
        )
    return tuple(items)
