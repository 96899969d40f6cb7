"""docs/options.md says what the code does, and knows every option that transformers has."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import transformers

import decoding
from decoding.generation.batching import TokenBatch
from decoding.generation.config import OPTIONS
from decoding.generation.inputs import PER_ROW
from decoding.generation.request import build_request
from decoding.generation.resolved import resolved
from decoding.generation.unsupported import ARGUMENTS, METADATA, UNSUPPORTED
from tests.support.random_models import ours

PAGE = Path(__file__).parent.parent.parent / "docs" / "options.md"
COST = re.compile(r"(free|inside the step|an? extra kernel|extra kernel|leaves the device)")


def tables() -> list[dict[str, dict[str, str]]]:
    """The page's tables: of each option its row, by the names of the columns."""
    found: list[dict[str, dict[str, str]]] = []
    columns: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
            found.append({})
        elif not set(line) <= set("|-"):
            name = cells[0].strip("`")
            assert name not in found[-1], f"{name} twice"
            found[-1][name] = dict(zip(columns, cells, strict=True))
    return found


OPTION_ROWS, ARGUMENT_ROWS = tables()


def test_the_table_has_every_option_and_no_other() -> None:
    assert list(OPTION_ROWS) == list(OPTIONS), "in the order of decoding/generation/config.py"
    ours = set(inspect.signature(decoding.Model.generate).parameters) - {"self", "options"}
    inputs = {"input_ids", "inputs", "attention_mask", "generation_config"}
    assert set(ARGUMENT_ROWS) == ours - inputs
    assert set(ARGUMENTS) == ours


def test_transformers_has_no_option_that_we_do_not_know() -> None:
    theirs = set(vars(transformers.GenerationConfig())) - set(METADATA)
    assert theirs <= set(OPTION_ROWS) | set(UNSUPPORTED)
    arguments = set(inspect.signature(transformers.GenerationMixin.generate).parameters)
    assert arguments - {"self", "kwargs"} <= set(UNSUPPORTED) | set(ARGUMENTS)


@pytest.mark.parametrize("name", OPTIONS)
def test_defaults(name: str) -> None:
    default = OPTIONS[name]["default"]
    said = OPTION_ROWS[name]["default"].partition(":")[0]
    assert said == ("none" if default in (None, ()) else str(default))


@pytest.mark.parametrize("name", OPTIONS)
def test_differences(name: str) -> None:
    """Which options are ours, and which transformers had until 4.x."""
    said = OPTION_ROWS[name]["differences"]
    known = hasattr(transformers.GenerationConfig(), name)
    assert said.startswith("ours") == (not known)
    lost = {"num_beam_groups", "diversity_penalty", "force_words_ids", "penalty_alpha"}
    assert said.startswith("4.x") == (name in lost)
    row = OPTION_ROWS[name]
    assert ("*each row*" in row["meaning"]) == (name in PER_ROW)


def test_costs_and_meanings() -> None:
    for name, row in (OPTION_ROWS | ARGUMENT_ROWS).items():
        assert COST.match(row["cost"]), name
        assert len(row["meaning"]) > 10, name


ON = {
    "guidance_scale": 2.0,
    "sequence_bias": {(3,): 1.0},
    "encoder_repetition_penalty": 1.5,
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "bad_words_ids": [[3, 4]],
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": (2, 1.5),
    "suppress_tokens": [3],
    "begin_suppress_tokens": [3],
    "renormalize_logits": True,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "top_h": 0.5,
    "min_p": 0.5,
    "typical_p": 0.5,
    "epsilon_cutoff": 0.5,
    "eta_cutoff": 0.5,
    "min_length": 3,
    "min_new_tokens": 3,
    "forced_eos_token_id": 3,
    "stop_strings": "a",
}


@pytest.mark.parametrize("name", ON)
def test_what_takes_an_extra_kernel(name: str) -> None:
    spec = ours("gpt2").spec
    request = build_request(
        resolved({"do_sample": True, name: ON[name]}, None, {}, spec),
        spec.decoder,
        prompt=TokenBatch(np.array([[12, 13]]), None),
        source=None,
        chosen=np.array([0]),
        seed=0,
        stop=None,
        hooked=False,
    )
    assert ("extra kernel" in OPTION_ROWS[name]["cost"]) == request.options.processed


def test_every_function_leaves_the_device() -> None:
    functions = set(ARGUMENT_ROWS) - {
        "decoder_input_ids",
        "tokenizer",
        "shortlist",
        "cancel",
        "progress",
    }
    assert {ARGUMENT_ROWS[name]["cost"] for name in functions} == {"leaves the device"}


def test_messages_show_the_beginning_of_long_values() -> None:
    for options in ({"output_attentions": [float("nan")] * 100_000}, {"max_length": "x" * 10_000}):
        with pytest.raises((TypeError, ValueError)) as caught:
            ours("gpt2").generate([[5]], **options)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("value", [2**31, 2**63, 10**400, -(2**31) - 1, -(10**400)], ids=range(5))
def test_numbers_beyond_the_engine_are_refused_by_name(name: str, value: int) -> None:
    """Whatever the option: an answer, or our own error before the engine sees the number."""
    pairs = {
        "bad_words_ids": [[value]],
        "exponential_decay_length_penalty": (value, 1.5),
        "force_words_ids": [[value]],
        "sequence_bias": [[[value], 1.0]],
        "stop_strings": [str(value)],
    }
    options = {"max_new_tokens": 2, "num_beams": 2, "eos_token_id": 1} | {
        name: pairs.get(name, value)
    }
    if name in ("num_beam_groups", "penalty_alpha"):
        options["num_beams"] = 1
    model = ours("gpt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.generate([[5, 6, 7]], **options)
        except (ValueError, TypeError, NotImplementedError) as error:
            assert name in str(error)  # noqa: PT017
