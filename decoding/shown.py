"""How a model shows itself: in a line, and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from decoding.common import html
from decoding.common.device import Device
from decoding.common.shapes import counted
from decoding.engine.memory import readable
from decoding.models.spec import EncoderSpec, ModelSpec


class ShownModel(Protocol):
    """What is shown of a model."""

    architecture: str
    directory: Path | None

    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def place(self) -> Device: ...
    @property
    def dtype_name(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def any_spec(self) -> ModelSpec | EncoderSpec: ...
    @property
    def weight_bytes(self) -> int: ...
    def num_parameters(self) -> int: ...


def model_line(model: ShownModel) -> str:
    """ "Model(marian, 7.86 M weights, float32, cpu, 2 threads)" """
    if model.closed:
        return f"{type(model).__name__}({family(model)}, closed)"
    on_cpu = model.place.type == "cpu"
    place = f"cpu, {threads(model)}" if on_cpu else str(model.place)
    weights = f"{counted(model.num_parameters())} weights"
    return f"{type(model).__name__}({family(model)}, {weights}, {model.dtype_name}, {place})"


def family(model: ShownModel) -> str:
    return str(model.config.get("model_type", model.architecture))


def threads(model: ShownModel) -> str:
    return f"{model.threads} thread{'s' if model.threads > 1 else ''}"


def model_html(model: ShownModel) -> str:
    if model.closed:
        return html.table([], title=model_line(model))
    spec = model.any_spec
    stacks = [spec.encoder] if isinstance(spec, EncoderSpec) else [spec.encoder, spec.decoder]
    names = ("encoder", "decoder")
    rows: list[tuple[str, object]] = [("architecture", model.architecture)]
    for name, stack in zip(names, stacks, strict=False):
        if stack is not None:
            sizes = f"{stack.layers} layers, {stack.hidden} wide, {stack.vocab} tokens"
            rows.append((name, f"{sizes}, {stack.positions} positions"))
    place = f"{threads(model)}, {model.isa}" if model.place.type == "cpu" else ""
    rows += [
        ("weights", f"{counted(model.num_parameters())}, {readable(model.weight_bytes)}"),
        ("type", model.dtype_name),
        ("device", f"{model.place}, {place}" if place else model.place),
        ("read from", model.directory or "memory"),
    ]
    return html.table(rows, title=f"{type(model).__name__} ({family(model)})")
