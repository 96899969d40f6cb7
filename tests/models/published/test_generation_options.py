"""Options of generate() in directories without generation_config.json: config.json's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.published.directories import assert_same_tokens, write
from tests.support.families import FAMILIES


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
