"""Reads options of a configuration; an unsupported value is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.models.files import short
from decoding.models.spec import MOST_LAYERS

MOST = 2**31 - 1  # of the engine's whole numbers
MOST_SIZE = 1 << 24  # vocabularies have up to 2^18 entries, models up to 10^7 positions
MOST_HEAD = 1 << 10  # numbers of a head
MOST_HEADS = 1 << 14
SMALLEST, LARGEST = 1e-30, 1e30  # of other numbers: their products and quotients are finite
ACTIVATIONS = {  # Hugging Face's names to those of spec.py
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


def integer(config: Mapping[str, Any], name: str, least: int, most: int = MOST) -> int:
    value = config.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(
            f"the configuration must set {name} to a whole number from {least} to {most}, "
            f"got {short(value)}"
        )
    return value


def size(config: Mapping[str, Any], name: str) -> int:
    """Of an axis of a weight, or a number of positions."""
    return integer(config, name, 1, MOST_SIZE)


def layer_count(config: Mapping[str, Any], name: str) -> int:
    return integer(config, name, 1, MOST_LAYERS)


def sizes(config: Mapping[str, Any], name: str, layers: int) -> tuple[int, ...]:
    """The option's value of each layer."""
    value = config.get(name)
    if not isinstance(value, list) or len(value) != layers:
        raise ValueError(
            f"the configuration must set {name} to {layers} numbers, got {short(value)}"
        )
    return tuple(size({name: number}, name) for number in value)


def flag(config: Mapping[str, Any], name: str) -> bool:
    """A flag; False where a published configuration leaves it out, or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"the configuration must set {name} to true or false, got {short(value)}")
    return bool(value)


def positive(config: Mapping[str, Any], name: str) -> float:
    value: Any = config.get(name)
    if type(value) not in (int, float) or not SMALLEST <= value <= LARGEST:
        raise ValueError(
            f"the configuration must set {name} to a number above 0, got {short(value)}"
        )
    return float(value)


def must_be(config: Mapping[str, Any], name: str, implemented: object) -> None:
    """Where the configuration sets `name` at all."""
    value = config.get(name)
    if value is not None and value != implemented:
        raise ValueError(
            f"the configuration: {name}={short(value)} is not supported, only {implemented!r}"
        )


def activation(
    config: Mapping[str, Any],
    option: str = "activation_function",
    known: Mapping[str, str] = ACTIVATIONS,
) -> str:
    """The name in spec.py of an activation. known: the option's values to those names."""
    name = config.get(option)
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"the configuration: {option}={short(name)} is not supported, only {', '.join(known)}"
        )
    return known[name]


def head_dim(config: Mapping[str, Any], hidden: str, heads: str) -> int:
    width, count = size(config, hidden), integer(config, heads, 1, MOST_HEADS)
    if width % count:
        raise ValueError(f"the configuration: {heads}={count} does not divide {hidden}={width}")
    if width // count > MOST_HEAD:
        raise ValueError(
            f"the configuration: {hidden}={width} makes heads of {width // count} numbers with "
            f"{heads}={count}, at most {MOST_HEAD} are possible"
        )
    return width // count
