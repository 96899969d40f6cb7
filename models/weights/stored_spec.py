"""A spec as a converted model stores it, in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from decoding.models.files import ModelFileError, short
from decoding.models.layouts.options import MOST
from decoding.models.spec import (
    ACTIVATIONS,
    MOST_LAYERS,
    POSITION_BIASES,
    ConvolutionSpec,
    EncoderSpec,
    ModelSpec,
    RotarySpec,
    StackSpec,
)

Spec = TypeVar("Spec", RotarySpec, ConvolutionSpec, StackSpec, ModelSpec, EncoderSpec)
OF_LAYERS = ("heads", "kv_heads", "ffn", "attention_scale", "window")
WORDS = {"activation": ACTIVATIONS, "position_bias": POSITION_BIASES}


def spec_of(stored: object) -> ModelSpec | EncoderSpec:
    """Raises ModelFileError that names a field which is missing, unknown or of another type."""
    given = {"spec": stored}
    content = table(given, "spec")
    stacks: dict[str, Any] = {
        name: made(StackSpec, table(content, name), rotary=RotarySpec, convolution=ConvolutionSpec)
        for name in ("encoder", "decoder")
        if content.get(name) is not None
    }
    if "decoder" not in content:
        return checked(EncoderSpec, {**content, **stacks})
    return checked(ModelSpec, {**content, **stacks})


def table(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    if not isinstance(value, dict):
        raise ModelFileError(f"{name} must be a table, got {short(value)}")
    return value


def made(kind: type[StackSpec], content: dict[str, Any], **inner: Any) -> StackSpec:
    """inner: the specs that are tables inside this one, or null."""
    parts = {
        name: checked(each, table(content, name))
        for name, each in inner.items()
        if content.get(name) is not None
    }
    stack = checked(kind, {**content, **parts})
    check_layers(stack)
    return stack


def check_layers(stack: StackSpec) -> None:
    """Raises ModelFileError where what each layer has of its own is not of all layers."""
    values = {name: getattr(stack, name) for name in OF_LAYERS}
    if stack.convolution:
        values["kernel_sizes"] = stack.convolution.kernel_sizes
    if not stack.window:  # no layer has one
        del values["window"]
    for name, value in values.items():
        if isinstance(value, tuple) and len(value) != stack.layers:
            raise ModelFileError(f"{name} must be of {stack.layers} layers, got {short(value)}")


def checked(kind: type[Spec], content: Mapping[str, Any]) -> Spec:
    """The spec of these fields; lists become tuples."""
    types = {field.name: str(field.type) for field in fields(kind)}
    if types.keys() != content.keys():
        raise ModelFileError(f"the fields of {kind.__name__} are not {short(list(content))}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    for name, value in values.items():
        if not any(CHECKS[each](name, value) for each in types[name].split(" | ")):
            raise ModelFileError(
                f"{kind.__name__}.{name} must be {types[name]}, got {short(value)}"
            )
    return kind(**values)


def is_whole(name: str, value: object) -> bool:
    most = MOST_LAYERS if name == "layers" else MOST
    return type(value) is int and 0 <= value <= most


def is_number(name: str, value: object) -> bool:
    return type(value) in (int, float) and -1e38 < value < 1e38  # type: ignore[operator]


def all_are(check: Callable[[str, object], bool]) -> Callable[[str, object], bool]:
    return lambda name, value: isinstance(value, tuple) and all(check(name, v) for v in value)


def is_a(kind: type) -> Callable[[str, object], bool]:
    return lambda name, value: type(value) is kind


# By the annotations of spec.py.
CHECKS: dict[str, Callable[[str, object], bool]] = {
    "int": is_whole,
    "float": is_number,
    "bool": is_a(bool),
    "str": lambda name, value: value in WORDS[name],
    "None": lambda name, value: value is None,
    "tuple[int, ...]": all_are(is_whole),
    "tuple[float, ...]": all_are(is_number),
    **{each.__name__: is_a(each) for each in (RotarySpec, ConvolutionSpec, StackSpec)},
}
