"""Models that must be told their languages: translate, score and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import decoding
from decoding.cli.main import main
from decoding.text.tokenizers import MultilingualTokenizer
from tests.support.stand_in import StandIn
from tests.support.vocabularies import ENGLISH, GERMAN
from tests.text.multilingual import write_mbart

# The tokenizer's class, and what the target's code is to generate().
CASES = [
    ("MBartTokenizer", "decoder_start_token_id"),
    ("MBart50Tokenizer", "forced_bos_token_id"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: str(case[0]))
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, str]:
    """A model's directory, transformers' model of it, and the option that names the target."""
    kind, option = request.param
    folder = tmp_path_factory.mktemp("model")
    return folder, write_mbart(folder, kind), option


def expected(saved: tuple[Path, Any, str], line: str, **options: Any) -> str:
    """As in transformers' own documentation of these models."""
    folder, model, option = saved
    tokenizer = decoding.load(folder, "cpu").tokenizer
    assert isinstance(tokenizer, MultilingualTokenizer)
    ids = tokenizer.between("de_DE", "en_XX")[0].encode(line)
    options |= {option: tokenizer.codes["en_XX"], "max_new_tokens": 20, "num_beams": 3}
    return tokenizer.decode(
        model.generate(torch.tensor([ids]), **options)[0].tolist(), skip_special_tokens=True
    )


def test_translate(saved: tuple[Path, Any, str], device: str) -> None:
    model = decoding.load(saved[0], device, dtype="float32")
    languages: dict[str, Any] = {"src_lang": "de_DE", "tgt_lang": "en_XX"}
    found = model.translate(GERMAN, max_new_tokens=20, num_beams=3, **languages)
    assert found == [expected(saved, line) for line in GERMAN]
    assert len(set(found)) > 2
    other = model.translate(GERMAN, max_new_tokens=20, num_beams=3, tgt_lang="ro_RO")
    assert other != found


def test_the_program(
    saved: tuple[Path, Any, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(saved[0])
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("\n".join(GERMAN), encoding="utf-8")
    common = ["--model", folder, "--device", "cpu", "--src-lang", "de_DE"]
    search = ["--input", str(source), "--num-beams", "3", "--max-new-tokens", "20"]
    assert main(["translate", *common, *search]) != 0
    assert "say which one with tgt_lang, one of a" in capsys.readouterr().err
    assert main(["translate", *common, "--tgt-lang", "en_XX", *search]) == 0
    assert capsys.readouterr().out.splitlines() == [expected(saved, line) for line in GERMAN]

    target.write_text("\n".join(ENGLISH), encoding="utf-8")
    files = ["--source", str(source), "--target", str(target)]
    scores = []
    for language in ("en_XX", "ro_RO"):
        assert main(["score", *common, "--tgt-lang", language, *files]) == 0
        scores.append(capsys.readouterr().out)
    assert scores[0] != scores[1]


def test_the_checkpoint_may_name_the_target(saved: tuple[Path, Any, str]) -> None:
    folder, _, option = saved
    model = decoding.load(folder, "cpu", dtype="float32")
    tokenizer = model.tokenizer
    assert isinstance(tokenizer, MultilingualTokenizer)
    options: dict[str, Any] = {"src_lang": "de_DE", "max_new_tokens": 20}
    found = model.translate(GERMAN, **options, tgt_lang="en_XX")
    named: dict[str, Any] = {option: tokenizer.codes["en_XX"]}
    assert model.translate(GERMAN, **options, **named) == found
    model.generation_config[option] = tokenizer.codes["en_XX"]
    assert model.translate(GERMAN, **options) == found


def test_languages_that_are_not_there(saved: tuple[Path, Any, str]) -> None:
    model = decoding.load(saved[0], "cpu")
    with pytest.raises(ValueError, match="tgt_lang='en' is no language of this model"):
        model.translate(GERMAN, tgt_lang="en")
    with pytest.raises(ValueError, match="has no languages to name: leave src_lang"):
        StandIn().translate(["a"], tgt_lang="en_XX")


def test_words_are_aligned(saved: tuple[Path, Any, str]) -> None:
    from decoding.text.translate import Translator

    model = decoding.load(saved[0], "cpu")
    translator = Translator(model, alignments=True, tgt_lang="en_XX", max_new_tokens=8, num_beams=2)
    for line, [best] in zip(GERMAN, translator.stream(GERMAN), strict=True):
        words = len(best.text.split())
        assert sorted(j for _, j in best.alignment) == list(range(words))
        assert all(0 <= i < len(line.split()) for i, _ in best.alignment)
