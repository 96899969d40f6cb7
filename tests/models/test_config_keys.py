"""Every importer, whatever a configuration says: a key that is missing or holds what nobody knows
is refused by its name, or counts for nothing."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from decoding.models import formats, registry
from decoding.models.layouts.rotary import TYPES, rotary
from decoding.models.weights.checkpoint import Checkpoint
from decoding.models.weights.lazy import Weights
from tests.models import test_formats, test_openelm
from tests.models.bounded import bounded
from tests.models.test_causal import SCALED
from tests.models.test_models import GPT2, MARIAN
from tests.support.families import ENCODERS, FAMILIES

NONSENSE: tuple[Any, ...] = ("unheard-of", -1.5)
EXTREME: tuple[Any, ...] = (0, 10**7, 10**400, 1e300, ["x"] * 10**4, {"a": [{}]})
State = dict[str, Tensor]


class Seen(dict[str, Any]):
    """Options, and the names of those that were looked at."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def of_toolkit(name: str) -> tuple[str, dict[str, Any], State]:
    make, write, file = test_formats.MODELS[name]
    with TemporaryDirectory() as folder:
        found = formats.read(write(Path(folder) / file, make()))
        assert found is not None
        return found.architecture, found.config, dict(Weights(found.state))


# What each importer is tried with: an architecture of transformers, or a toolkit's model.
TRANSFORMERS = {
    **{family.architecture: family.config for family in FAMILIES.values()},
    **dict(ENCODERS.values()),
    "GPT2LMHeadModel": GPT2,
    "MarianMTModel": MARIAN,
}
TOOLKITS = ("fairseq-pre-norm", "marian-post-norm", "opennmt")
NAMES = (*TRANSFORMERS, "OpenELMForCausalLM", *TOOLKITS)


@cache
def small(name: str) -> tuple[str, dict[str, Any], State]:
    """A checkpoint: its architecture, its options and its tensors."""
    if name == "OpenELMForCausalLM":
        return name, test_openelm.CONFIG, test_openelm.weights()
    if name in TOOLKITS:
        return of_toolkit(name)
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**TRANSFORMERS[name]))
    return name, model.config.to_dict(), model.state_dict()


def converted(name: str, config: dict[str, Any]) -> tuple[Any, State]:
    architecture, _, state = small(name)
    (file,) = {file for known, _, file in registry.FAMILIES if known == architecture}
    importer = import_module(f"decoding.models.families.{file}")
    for option, usual in importer.DEFAULTS.items():
        config.setdefault(option, usual)
    spec, weights = importer.convert(config, Checkpoint(state))
    return spec, dict(Weights(weights))


def same(a: tuple[Any, State], b: tuple[Any, State]) -> bool:
    return a[0] == b[0] and all(a[1][name].equal(b[1][name]) for name in a[1].keys() | b[1].keys())


@pytest.mark.parametrize("name", NAMES)
def test_values_that_nobody_knows(name: str) -> None:
    config = Seen(small(name)[1])
    expected = converted(name, config)
    for key in config.names:
        for value in NONSENSE:
            try:
                assert same(converted(name, {**config, key: value}), expected), (key, value)
            except ValueError as error:
                assert key in str(error), f"{key}={value}: {error}"


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_are_missing(name: str) -> None:
    """What stands for one of them may contradict the tensors: that error names a tensor."""
    config = Seen(small(name)[1])
    converted(name, config)
    for key in config.names & small(name)[1].keys():
        try:
            converted(name, {other: config[other] for other in config if other != key})
        except ValueError as error:
            assert re.search(rf"{key}|tensor|must have the shape", str(error)), f"{key}: {error}"


@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_out_of_range(name: str) -> None:
    """One number must not take long, or fill the memory, whatever else it does."""
    config = Seen(small(name)[1])
    converted(name, config)
    for key in config.names:
        for value in EXTREME:
            try:
                with bounded():
                    converted(name, {**config, key: value})
            except ValueError as error:
                assert len(str(error)) < 1500


@pytest.mark.parametrize("scaling", SCALED.values(), ids=SCALED)
def test_tables_of_rotary_positions(scaling: dict[str, Any]) -> None:
    config = {"max_position_embeddings": 131072}
    for key in {*scaling, *TYPES[scaling["rope_type"]], "rope_theta", "partial_rotary_factor"}:
        for value in NONSENSE:
            with pytest.raises(ValueError, match=key):
                rotary({**config, "rope_parameters": {**scaling, key: value}}, 128)
    for name in ("rope_scaling", "rope_parameters"):
        with pytest.raises(ValueError, match=f"set {name} to a table, got 'unheard-of'"):
            rotary({**config, name: "unheard-of"}, 128)
    with pytest.raises(ValueError, match="unheard-of of rope_type"):
        rotary({**config, "rope_parameters": {**scaling, "unheard-of": 1}}, 128)
    for key in {*scaling, *TYPES[scaling["rope_type"]], "rope_theta", "partial_rotary_factor"}:
        for value in (*EXTREME, 1, 1e-300):
            try:
                with bounded():
                    rotary({**config, "rope_parameters": {**scaling, key: value}}, 128)
            except ValueError as error:
                assert len(str(error)) < 1500


def test_every_importer_is_tried() -> None:
    """But llama2.c's, whose files are numbers in a fixed order: test_llama2c.py."""
    tried = {small(name)[0] for name in NAMES}
    assert {known for known, _, _ in registry.FAMILIES} - tried == {"Llama2c"}
