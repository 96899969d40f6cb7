"""Names, colours and markers of engines in tables and figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OURS = "ours"


@dataclass(frozen=True)
class Style:
    """An engine's name for people; its colour (of svg.py) and its marker (matplotlib's)."""

    name: str
    colour: str
    marker: str


STYLES = {
    OURS: Style("decoding", "blue", "o"),
    "huggingface": Style("transformers", "orange", "s"),
    "ctranslate2": Style("CTranslate2", "green", "^"),
    "huggingface-static": Style("transformers, static cache", "red", "D"),
    "ours-deterministic": Style("decoding, deterministic", "violet", "X"),
    "ours-int8": Style("decoding, int8 weights", "green", "P"),
    "ours-w8a8": Style("decoding, W8A8", "red", "d"),
    "ours-graphs": Style("decoding, CUDA graphs", "violet", "X"),
    "torch-graphs": Style("torch, CUDA graphs", "orange", "s"),
    "torch-nested": Style("torch, nested tensors", "violet", "v"),
}


def style(engine: str) -> Style:
    """The style of an engine; an unknown one has its own name."""
    return STYLES.get(engine, Style(engine, "gold", "P"))


def called(reference: str) -> str:
    """The name of a check's reference for people, without the device, which is clear."""
    engine, dtype = reference.split(" ")[:2]
    return f"{style(engine).name} {dtype}"


def ordered(engines: Iterable[str]) -> list[str]:
    """Each engine once; ours last, whose row or column is compared with all others."""
    return sorted(dict.fromkeys(engines), key=lambda engine: engine == OURS)
