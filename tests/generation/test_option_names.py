"""An unknown option is answered with the name that its user means, or with none."""

from __future__ import annotations

import pytest

from decoding.generation.config import OPTIONS
from decoding.generation.option_names import OTHER_NAMES, nearest
from decoding.generation.resolve import check_names
from decoding.generation.unsupported import ARGUMENTS, UNSUPPORTED


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("stop", "stop_strings"),
        ("n", "num_return_sequences"),
        ("max_decoding_length", "max_new_tokens"),
        ("max_tokens", "max_new_tokens"),
        ("sampling_topk", "top_k"),
        ("sampling_topp", "top_p"),
        ("beam_size", "num_beams"),
        ("beam-size", "num_beams"),
        ("lenpen", "length_penalty"),
        ("nbest", "num_return_sequences"),
        ("logit_bias", "sequence_bias"),
        ("target_prefix", "decoder_input_ids"),
        ("num_beam", "num_beams"),
        ("temprature", "temperature"),
        ("topk", "top_k"),
        ("watermark_config", "watermarking_config"),
    ],
)
def test_a_name_of_another_library_or_a_slip(name: str, meant: str) -> None:
    message = rf"generate\(\) has no option '{name}'; did you mean '{meant}'\?$"
    with pytest.raises(TypeError, match=message):
        check_names({name: 1})


@pytest.mark.parametrize("name", ["batch_size", "foo", "quality", "x", "verbose", "device_map"])
def test_nothing_is_suggested_where_nothing_is_near(name: str) -> None:
    with pytest.raises(TypeError, match=rf"generate\(\) has no option '{name}'$"):
        check_names({name: 1})


def test_the_table_names_what_there_is() -> None:
    known = {*OPTIONS, *ARGUMENTS}
    assert set(OTHER_NAMES.values()) <= known
    assert not set(OTHER_NAMES) & (known | set(UNSUPPORTED))
    assert list(OTHER_NAMES) == sorted(OTHER_NAMES)


def test_options_of_the_command_line_are_told_in_their_own_spelling() -> None:
    assert nearest("--beam-size", ["--num-beams", "--n-best"]) == "--num-beams"
    assert nearest("--num_beams", ["--num-beams"]) == "--num-beams"
    assert nearest("trnslate", ["translate", "score"]) == "translate"
    assert nearest("--beam-size", ["--source"]) is None
