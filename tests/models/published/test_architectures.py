"""Which family a config.json is of, where its keys disagree or name other classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from decoding.models import load
from tests.models.published.directories import assert_same_states, assert_same_tokens, write
from tests.support.families import FAMILIES, encoder


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("mistral", "LlamaForCausalLM"),
        ("qwen2", "LlamaForCausalLM"),
        ("gemma", "LlamaForCausalLM"),
        ("bart", "MarianMTModel"),
        ("mbart", "BartForConditionalGeneration"),
        ("m2m-100", "PegasusForConditionalGeneration"),
        ("blenderbot-small", "BlenderbotForConditionalGeneration"),
        ("t5", "MT5ForConditionalGeneration"),
        ("mt5", "T5ForConditionalGeneration"),
    ],
)
def test_model_type_decides_the_family(name: str, architecture: str, tmp_path: Path) -> None:
    assert_same_tokens(write(tmp_path, FAMILIES[name].model(), architectures=[architecture]))


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("roberta", "BertModel"), ("bert", "RobertaModel"), ("roberta", "XLMRobertaModel")],
)
def test_model_type_decides_the_family_of_an_encoder(
    name: str, architecture: str, tmp_path: Path
) -> None:
    write(tmp_path, encoder(name), architectures=[architecture])
    assert_same_states(tmp_path)


def test_the_architecture_decides_within_a_family_and_alone(tmp_path: Path) -> None:
    heads = write(tmp_path / "heads", encoder("bert-masked"))
    assert load(heads).architecture == "BertForMaskedLM"
    alone = write(tmp_path / "alone", FAMILIES["umt5"].model(), model_type=None)
    assert load(alone).architecture == "UMT5ForConditionalGeneration"
    unknown = write(tmp_path / "unknown", FAMILIES["llama"].model(), model_type="unheard-of")
    assert load(unknown).architecture == "LlamaForCausalLM"


def test_t5_by_its_first_name(tmp_path: Path) -> None:
    write(tmp_path, FAMILIES["t5"].model(), architectures=["T5WithLMHeadModel"])
    assert_same_tokens(tmp_path)
    assert load(tmp_path).architecture == "T5ForConditionalGeneration"


def test_bart_without_its_output(tmp_path: Path) -> None:
    """As facebook/bart-base and bart-large are: the model alone, which names the class."""
    model = FAMILIES["bart"].model(end=2)
    model.final_logits_bias.zero_()
    model.model.save_pretrained(tmp_path)
    assert_same_tokens(tmp_path)
    assert load(tmp_path).architecture == "BartForConditionalGeneration"
