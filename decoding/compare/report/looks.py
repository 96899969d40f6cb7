"""How engines are called and told apart in all that is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OURS = "ours"


@dataclass(frozen=True)
class Look:
    """An engine's name for people; its colour (of svg.py) and its marker (matplotlib's)."""

    name: str
    colour: str
    marker: str


LOOKS = {
    OURS: Look("decoding", "blue", "o"),
    "huggingface": Look("transformers", "orange", "s"),
    "ctranslate2": Look("CTranslate2", "green", "^"),
    "huggingface-static": Look("transformers, static cache", "red", "D"),
    "torch-nested": Look("torch, nested tensors", "violet", "v"),
}


def look(engine: str) -> Look:
    return LOOKS.get(engine, Look(engine, "gold", "P"))


def called(reference: str) -> str:
    """What a check's reference is for people: without the device, which is clear."""
    engine, dtype = reference.split(" ")[:2]
    return f"{look(engine).name} {dtype}"


def ordered(engines: Iterable[str]) -> list[str]:
    """Each once; ours last, whose row or column is held against all others."""
    return sorted(dict.fromkeys(engines), key=lambda engine: engine == OURS)
