"""The fields of a request's body: all of them known, each of its type."""

from __future__ import annotations

import json
import math
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from decoding.generation.checks import Check
from decoding.generation.option_names import suggestion
from decoding.server.errors import ApiError, reading

Fields = dict[str, Any]
KEPT, LONGEST = 256, 4096  # bodies of an endpoint, and the bytes of one


class Kept:
    """What bodies have asked for, since most clients ask in the same way again and again."""

    def __init__(self) -> None:
        self._found: dict[bytes, Any] = {}

    def once(self, fields: Fields, make: Callable[[Fields], Any]) -> Any:
        """What `make` makes of fields, which it may empty."""
        key = encode(fields)
        if key in self._found:
            return self._found[key]
        with reading:
            made = make(fields)
        if len(key) <= LONGEST:
            if len(self._found) >= KEPT:
                self._found.clear()
            self._found[key] = made
        return made


def encode(value: Any) -> bytes:
    """As JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a client's: half a surrogate pair, a number of more than 64 bits
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


def read_json(body: bytes) -> Fields:
    """Raises ApiError for what is no JSON object."""
    try:
        read = decode(body.decode(json.detect_encoding(body)))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise ApiError(400, f"the body must be a JSON object, got {type(read).__name__}")
    return read


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is too large a number")
    return value


decode = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite).decode


def read_form(body: bytes, lists: Collection[str]) -> Fields:
    """The fields of an HTML form. lists: names that may come several times."""
    try:
        read = urllib.parse.parse_qs(
            body.decode("ascii"), True, errors="strict", max_num_fields=9999
        )
    except ValueError as error:
        raise ApiError(400, f"the body is no form: {error}") from None
    return {name: v if name in lists and len(v) > 1 else v[-1] for name, v in read.items()}


def check_known(
    fields: Mapping[str, Any], known: Collection[str], refused: Mapping[str, str]
) -> None:
    """Raises ApiError that names all unknown fields. refused: known, but not supported, with what
    to do instead."""
    for name in fields.keys() & refused.keys():
        if fields[name] is not None:
            raise ApiError(400, f"{name} is not supported: {refused[name]}", param=name)
    unknown = [name for name in fields if name not in known and name not in refused]
    if unknown:
        said = ", ".join(f"{name[:64]!r}{suggestion(name[:64], known)}" for name in unknown[:16])
        raise ApiError(400, f"unknown field {said}", param=unknown[0][:64], code="unknown_field")


def take(fields: Fields, name: str, check: Check, default: Any = None) -> Any:
    """Removes a field and returns its checked value; `default` where it is missing or null."""
    value = fields.pop(name, None)
    return default if value is None else check(name, value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, got {type(value).__name__}")
    return value
