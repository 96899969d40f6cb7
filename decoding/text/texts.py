"""Texts as callers give them: one, or a list of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def as_texts(name: str, given: Any) -> tuple[list[str], bool]:
    """The texts of an argument, and whether it was one alone.

    given: a str, which is one text, or an iterable of them. Raises TypeError for anything else,
    ValueError for a str that no UTF-8 file could hold; both name the place.
    """
    if isinstance(given, str):
        return [checked(name, given)], True
    if not isinstance(given, Iterable) or isinstance(given, (Mapping, bytes, bytearray)):
        raise TypeError(f"{name} must be a str or a list of str, got {type(given).__name__}")
    return [checked(f"{name}[{i}]", text) for i, text in enumerate(given)], False


def checked(name: str, text: Any) -> str:
    """The text itself. Raises as `as_texts`."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds half of a surrogate pair, {text[error.start]!r}, at character "
            f"{error.start}: it is no Unicode text; decode its bytes with errors='replace'"
        ) from None
    return text


def is_text(given: Any) -> bool:
    """Whether an argument that takes ids or texts holds texts."""
    if isinstance(given, (str, bytes)):
        return True
    if isinstance(given, np.ndarray):
        return bool(given.dtype.kind == "U")
    return isinstance(given, (list, tuple)) and any(isinstance(text, str) for text in given)
