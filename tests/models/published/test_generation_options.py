"""Options of generate() in directories without generation_config.json: config.json's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import decoding
from tests.models.published.directories import assert_same_tokens, write
from tests.support.families import FAMILIES
from tests.support.random_models import reference


def without_generation_config(directory: Path, model: Any, **config: Any) -> Path:
    write(directory, model, **config)
    (directory / "generation_config.json").unlink()
    return directory


@pytest.mark.parametrize("forced", [None, 5])
def test_an_old_flag_begins_with_bos(forced: int | None, tmp_path: Path) -> None:
    """force_bos_token_to_be_generated, of the first files of BART, wins over what came later."""
    options = {"force_bos_token_to_be_generated": True, "forced_bos_token_id": forced}
    options |= {"forced_eos_token_id": 2}
    without_generation_config(tmp_path, FAMILIES["bart"].model(), **options)
    assert_same_tokens(tmp_path)
    assert_same_tokens(tmp_path, num_beams=3)


def test_generation_config_wins_over_the_old_flag(tmp_path: Path) -> None:
    write(tmp_path, FAMILIES["bart"].model(), force_bos_token_to_be_generated=True)
    assert_same_tokens(tmp_path)


SILENT = {"eos_token_id": None, "forced_eos_token_id": None}  # and so rows end at their length


@pytest.mark.parametrize(
    "name",
    ["bart", "mbart", "m2m-100", "pegasus", "blenderbot", "blenderbot-small", "t5", "llama",
     "mistral", "gpt-neox", "marian", "gpt2"],
)  # fmt: skip
def test_silence_is_no_default(name: str, tmp_path: Path) -> None:
    """A family's usual EOS, say, is none of the options; what config.json sets is."""
    model = FAMILIES[name].model() if name in FAMILIES else reference(name)
    without_generation_config(tmp_path / "silent", model, **SILENT)
    assert_same_tokens(tmp_path / "silent")
    options = {"num_beams": 3, "no_repeat_ngram_size": 2, "min_length": 3, "eos_token_id": 5}
    without_generation_config(tmp_path / "set", model, **options, forced_eos_token_id=7)
    assert_same_tokens(tmp_path / "set")


@pytest.mark.parametrize("name", ["bart", "m2m-100", "blenderbot"])
def test_a_target_begins_with_bos_where_nothing_is_said(name: str, tmp_path: Path) -> None:
    model = FAMILIES[name].model()
    without_generation_config(tmp_path, model, decoder_start_token_id=None, **SILENT)
    assert_same_tokens(tmp_path)


def test_saving_sets_no_option(tmp_path: Path) -> None:
    model = FAMILIES["bart"].model()
    given = without_generation_config(tmp_path / "given", model, num_beams=2, **SILENT)
    ours = decoding.load(given, "cpu", dtype="float32", threads=1)
    ours.save(tmp_path / "saved")
    again = decoding.load(tmp_path / "saved", "cpu", threads=1)
    assert again.config == ours.config
    assert again.generation_config == ours.generation_config
    assert again.generation_config.num_beams == 2
    assert again.generation_config.eos_token_id is None
